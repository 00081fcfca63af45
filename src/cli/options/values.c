/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses the text of an option by its type and checks its bounds.
 */
#include "cli/options/values.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"
#include "base/numbers.h"
#include "cli/commands.h"

#define PART_MAX 64 /* bytes of one element of a list */

static const char size_units[] = "kmgtp";
static const struct {
	const char *suffix;
	uint64_t us;
} time_units[] = {{"", 1000000},   {"s", 1000000},    {"us", 1},	 {"ms", 1000},
		  {"m", 60000000}, {"h", 3600000000}, {"d", 86400000000}};

static int __attribute__((format(printf, 2, 3)))
refuse(const struct option_source *source, const char *format, ...)
{
	const char *name = source->spec->name, *text = source->text;
	char why[768];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	if (source->where)
		say("%s: %s=%s: %s", source->where, name, text, why);
	else
		say("--%s %s: %s", name, text, why);
	return -EINVAL;
}

/*
 * Parses leading decimal digits; *end is the rest. -EINVAL without a digit, -ERANGE above 64 bits.
 */
static int parse_digits(const char *text, uint64_t *value, const char **end)
{
	*value = 0;
	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	for (; isdigit((unsigned char)*text); text++)
		if (__builtin_mul_overflow(*value, 10, value) ||
		    __builtin_add_overflow(*value, (unsigned)(*text - '0'), value))
			return -ERANGE;
	*end = text;
	return 0;
}

/* All units are powers of 1024, fio's default. */
static int parse_size(const char *text, uint64_t *value)
{
	const char *end, *unit;
	int rc = parse_digits(text, value, &end);

	if (rc || !*end)
		return rc;
	unit = strchr(size_units, tolower((unsigned char)*end));
	if (!unit || (end[1] && strcasecmp(end + 1, "b") != 0 && strcasecmp(end + 1, "i") != 0 &&
		      strcasecmp(end + 1, "ib") != 0))
		return -EINVAL;
	return __builtin_mul_overflow(*value, 1ull << (10 * (unit - size_units + 1)), value)
		       ? -ERANGE
		       : 0;
}

static int parse_duration(const char *text, uint64_t *ms)
{
	const char *end;
	uint64_t value;
	int rc = parse_digits(text, &value, &end);

	for (size_t i = 0; !rc && i < COUNT_OF(time_units); i++) {
		if (strcmp(end, time_units[i].suffix) != 0)
			continue;
		if (__builtin_mul_overflow(value, time_units[i].us, &value))
			return -ERANGE;
		*ms = value / 1000;
		return value % 1000 ? -EINVAL : 0;
	}
	return rc ? rc : -EINVAL;
}

/* Multiplies by ten to the power `exponent`; -EINVAL if the result is not whole. */
static int scale_by_ten(uint64_t *value, int64_t exponent)
{
	for (; exponent < 0 && *value; exponent++, *value /= 10)
		if (*value % 10)
			return -EINVAL;
	for (; exponent > 0 && *value; exponent--)
		if (__builtin_mul_overflow(*value, 10, value))
			return -ERANGE;
	return 0;
}

/* Whole numbers as JSON writes them: 1000000000, 1e9, 2.5e7. */
static int parse_count(const char *text, uint64_t *value)
{
	const char *end, *point;
	uint64_t exponent = 0;
	int64_t places = 0;
	int rc = parse_digits(text, value, &end);

	if (!rc && *end == '.') {
		for (point = end++; isdigit((unsigned char)*end); end++)
			if (__builtin_mul_overflow(*value, 10, value) ||
			    __builtin_add_overflow(*value, (unsigned)(*end - '0'), value))
				return -ERANGE;
		places = end - point - 1;
		rc = places ? 0 : -EINVAL;
	}
	if (!rc && tolower((unsigned char)*end) == 'e')
		rc = parse_digits(end + 1 + (end[1] == '+'), &exponent, &end);
	if (!rc && (*end || exponent > INT32_MAX))
		rc = -EINVAL;
	return rc ? rc : scale_by_ten(value, (int64_t)exponent - places);
}

/* Digits with at most one point: strtod also takes " 1", "0x1p-1" and "nan". */
static int parse_decimal(const char *text, double *value)
{
	char *end;

	if (!*text || text[strspn(text, "0123456789.")])
		return -EINVAL;
	*value = strtod(text, &end);
	return *end ? -EINVAL : 0;
}

/* A size as a user writes it: 1048576 as 1m. */
static const char *typed_size(uint64_t nbytes, char buffer[32])
{
	unsigned unit = 0;

	for (; nbytes && nbytes % 1024 == 0 && size_units[unit]; unit++)
		nbytes /= 1024;
	snprintf(buffer, 32, "%llu%.*s", (unsigned long long)nbytes, unit > 0,
		 size_units + (unit ? unit - 1 : 0));
	return buffer;
}

/* "a size from 1k to 1g that is a multiple of 512". */
static const char *size_bounds(const struct option_spec *spec, char buffer[128])
{
	char min[32], max[32], multiple[32];

	snprintf(buffer, 128, "a size from %s to %s%s%s", typed_size(spec->min, min),
		 typed_size(spec->max, max), spec->multiple ? " that is a multiple of " : "",
		 spec->multiple ? typed_size(spec->multiple, multiple) : "");
	return buffer;
}

static int refuse_number(const struct option_source *source)
{
	unsigned long long min = source->spec->min, max = source->spec->max;
	char bounds[128];

	if (source->spec->type == OPTION_SIZE)
		return refuse(source, "allowed is %s, written like 4096, 4k, 1M or 1g",
			      size_bounds(source->spec, bounds));
	if (source->spec->type == OPTION_DURATION)
		return refuse(source,
			      "allowed is a time in whole milliseconds from %llu ms to %llu s, "
			      "written like 30, 500ms, 5m or 1h",
			      min, max / 1000);
	return refuse(source, "allowed is a whole number from %llu to %llu", min, max);
}

static bool within_bounds(const struct option_spec *spec, uint64_t value)
{
	return value >= spec->min && value <= spec->max &&
	       (!spec->multiple || value % spec->multiple == 0);
}

static int store_number(const struct option_source *source, void *at)
{
	uint64_t value = 0;
	int rc;

	if (source->spec->type == OPTION_SIZE)
		rc = parse_size(source->text, &value);
	else if (source->spec->type == OPTION_DURATION)
		rc = parse_duration(source->text, &value);
	else
		rc = parse_count(source->text, &value);
	if (rc || !within_bounds(source->spec, value))
		return refuse_number(source);
	memcpy(at, &value, sizeof(value));
	return 0;
}

static int store_share(const struct option_source *source, void *at)
{
	double value;

	if (parse_decimal(source->text, &value) || !(value > 0 && value <= 1))
		return refuse(source, "allowed is a number above 0 and up to 1, such as 0.25");
	memcpy(at, &value, sizeof(value));
	return 0;
}

static int store_percent(const struct option_source *source, void *at)
{
	double value;

	if (parse_decimal(source->text, &value) || value > 100)
		return refuse(source, "allowed is a number of per cent from 0 to 100, such as 2");
	memcpy(at, &value, sizeof(value));
	return 0;
}

static unsigned count_names(const char *const *names)
{
	unsigned n = 0;

	while (names && names[n])
		n++;
	return n;
}

/* "a, b and c". */
static const char *join_names(const char *const *names, char *text, size_t nbytes)
{
	unsigned n = count_names(names);

	*text = '\0';
	for (unsigned i = 0; i < n; i++)
		snprintf(text + strlen(text), nbytes - strlen(text), "%s%s",
			 !i	      ? ""
			 : i == n - 1 ? " and "
				      : ", ",
			 names[i]);
	return text;
}

/* What to use for the value, or for it with a suffix: readwrite, randread:8. NULL: not known. */
static const char *elsewhere(const struct option_spec *spec, const char *text)
{
	size_t n = strcspn(text, ":");

	for (const struct option_gone *value = spec->elsewhere; value && value->name; value++)
		if (strlen(value->name) == n && !strncmp(text, value->name, n))
			return value->instead;
	return NULL;
}

static int find_choice(const struct option_source *source, const char *text, unsigned *choice)
{
	const struct option_spec *spec = source->spec;
	unsigned n = count_names(spec->choices);
	const char *instead = elsewhere(spec, text), *nearest;
	char allowed[384];

	for (*choice = 0; *choice < n; ++*choice)
		if (!strcmp(text, spec->choices[*choice]))
			return 0;
	if (instead)
		return refuse(source, "%s. Allowed here are %s", instead,
			      join_names(spec->choices, allowed, sizeof(allowed)));
	nearest = nearest_name(text, spec->choices, n);
	return refuse(source, "allowed are %s%s%s%s",
		      join_names(spec->choices, allowed, sizeof(allowed)),
		      nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static int store_choice(const struct option_source *source, void *at)
{
	unsigned choice;
	int rc = find_choice(source, source->text, &choice);

	if (!rc)
		memcpy(at, &choice, sizeof(choice));
	return rc;
}

static int store_flag(const struct option_source *source, void *at)
{
	const char *text = source->text ? source->text : "1";
	bool on = !strcmp(text, "1");

	if (!on && strcmp(text, "0") != 0)
		return refuse(source, "allowed are 0 and 1, or no value, which is 1");
	if (on < source->spec->min)
		return refuse(source, "only 1 is supported");
	memcpy(at, &on, sizeof(on));
	return 0;
}

/* ---- Several values in one text */

/*
 * Copies the text before the separator, or all of it, to `part`; *rest is NULL after the last.
 * -EINVAL: longer than any valid part.
 */
static int cut_part(const char **rest, char separator, char *part, size_t nbytes)
{
	const char *end = strchrnul(*rest, separator);
	size_t length = (size_t)(end - *rest);

	if (length >= nbytes)
		return -EINVAL;
	memcpy(part, *rest, length);
	part[length] = '\0';
	*rest = *end ? end + 1 : NULL;
	return 0;
}

static int store_choices(const struct option_source *source, void *at)
{
	const char *rest = source->text;
	unsigned bits = 0, choice;
	char part[PART_MAX];

	while (rest) {
		if (cut_part(&rest, ',', part, sizeof(part)))
			return refuse(source, "allowed are names separated by commas");
		if (find_choice(source, part, &choice))
			return -EINVAL;
		bits |= 1u << choice;
	}
	memcpy(at, &bits, sizeof(bits));
	return 0;
}

/* "64k/70", or without a share, which is -1 then. */
static int parse_mix_part(const struct option_spec *spec, char *part, uint64_t *nbytes,
			  double *percent)
{
	char *slash = strchr(part, '/');

	*percent = -1;
	if (slash) {
		*slash = '\0';
		if (slash[1] && (parse_decimal(slash + 1, percent) || *percent > 100))
			return -EINVAL;
	}
	return parse_size(part, nbytes) || !within_bounds(spec, *nbytes) ? -EINVAL : 0;
}

/* Sizes without a share divide the rest equally. */
static int share_out(const struct option_source *source, struct option_mix *mix)
{
	double sum = 0;
	unsigned without = 0;

	for (unsigned i = 0; i < mix->n; i++) {
		without += mix->percent[i] < 0;
		sum += mix->percent[i] < 0 ? 0 : mix->percent[i];
	}
	if (sum > 100.000001 || (!without && sum < 99.999999))
		return refuse(source, "the shares add up to %g %%, not to 100", sum);
	for (unsigned i = 0; i < mix->n; i++)
		if (mix->percent[i] < 0)
			mix->percent[i] = (100 - sum) / without;
	return 0;
}

static int refuse_mix(const struct option_source *source)
{
	char bounds[128];

	return refuse(source,
		      "allowed is SIZE/PERCENT:SIZE/PERCENT..., such as 64k/70:1m/30, each %s",
		      size_bounds(source->spec, bounds));
}

static int store_mix(const struct option_source *source, void *at)
{
	const char *rest = source->text;
	struct option_mix mix = {.n = 0};
	char part[PART_MAX];
	int rc;

	for (; rest; mix.n++) {
		if (mix.n == OPTION_MIX_MAX)
			return refuse(source, "allowed are up to %u sizes", OPTION_MIX_MAX);
		if (cut_part(&rest, ':', part, sizeof(part)) ||
		    parse_mix_part(source->spec, part, &mix.nbytes[mix.n], &mix.percent[mix.n]))
			return refuse_mix(source);
	}
	rc = share_out(source, &mix);
	if (!rc)
		memcpy(at, &mix, sizeof(mix));
	return rc;
}

/* ---- Lists of names */

/* The texts of lists. Jobs share copies of values, so no job owns them. */
static struct cut_text {
	struct cut_text *next;
	char text[];
} * cut_texts;

static char *keep_text(const char *text)
{
	size_t nbytes = strlen(text) + 1;
	struct cut_text *kept = malloc(sizeof(*kept) + nbytes);

	if (!kept)
		return NULL;
	memcpy(kept->text, text, nbytes);
	kept->next = cut_texts;
	cut_texts = kept;
	return kept->text;
}

void options_forget_lists(void)
{
	while (cut_texts) {
		struct cut_text *next = cut_texts->next;

		free(cut_texts);
		cut_texts = next;
	}
}

/* Ends the item at its separator. Returns the rest, or NULL. */
static char *cut_item(char *text)
{
	char *separator = strchr(text, ':');

	if (separator)
		*separator++ = '\0';
	return separator;
}

static int add_item(const struct option_source *source, struct option_list *list, const char *item)
{
	if (!*item)
		return refuse(source, "a name between the colons is empty");
	if (list->n == NVS_PATHS_MAX)
		return refuse(source, "given more than %u times", NVS_PATHS_MAX);
	list->items[list->n++] = item;
	return 0;
}

/* A repeated option extends the list; a line of a file replaces it. */
static int store_list(const struct option_source *source, void *at)
{
	struct option_list *list = at;
	char *item, *rest;
	int rc = 0;

	if (source->where)
		list->n = 0;
	if (!strchr(source->text, ':'))
		return add_item(source, list, source->text);
	rest = keep_text(source->text);
	if (!rest)
		return refuse(source, "out of memory");
	while (!rc && rest) {
		item = rest;
		rest = cut_item(item);
		rc = add_item(source, list, item);
	}
	return rc;
}

/* ---- All types */

static int store_string(const struct option_source *source, void *at)
{
	memcpy(at, &source->text, sizeof(source->text));
	return 0;
}

static const struct {
	int (*store)(const struct option_source *source, void *at);
	size_t nbytes;
} types[] = {
	[OPTION_FLAG] = {store_flag, sizeof(bool)},
	[OPTION_COUNT] = {store_number, sizeof(uint64_t)},
	[OPTION_SIZE] = {store_number, sizeof(uint64_t)},
	[OPTION_DURATION] = {store_number, sizeof(uint64_t)},
	[OPTION_SHARE] = {store_share, sizeof(double)},
	[OPTION_CHOICE] = {store_choice, sizeof(unsigned)},
	[OPTION_STRING] = {store_string, sizeof(const char *)},
	[OPTION_LIST] = {store_list, sizeof(struct option_list)},
	[OPTION_MIX] = {store_mix, sizeof(struct option_mix)},
	[OPTION_CHOICES] = {store_choices, sizeof(unsigned)},
	[OPTION_PERCENT] = {store_percent, sizeof(double)},
};

size_t option_value_bytes(enum option_type type)
{
	return types[type].nbytes;
}

int option_store(const struct option_source *source, void *at)
{
	const struct option_spec *spec = source->spec;
	bool bare_flag = !source->text && spec->type == OPTION_FLAG;

	if (!bare_flag && (!source->text || !*source->text)) {
		say("%s%s%s needs a value that is not empty: %s",
		    source->where ? source->where : "", source->where ? ": " : "--", spec->name,
		    spec->argument ? spec->argument : "0 or 1");
		return -EINVAL;
	}
	return types[spec->type].store(source, at);
}
