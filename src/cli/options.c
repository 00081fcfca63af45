/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser over an option table, on getopt_long. It knows types, bounds and conflicts, and
 * nothing of what an option is for.
 */
#include "options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"

/* getopt's value of option i; out of the way of '?' and ':'. */
#define VALUE(i) (1000 + (int)(i))

static const struct {
	const char *suffix;
	uint64_t factor;
} size_units[] = {{"k", 1ull << 10}, {"m", 1ull << 20}, {"g", 1ull << 30}, {"t", 1ull << 40}},
  time_units[] = {{"", 1000}, {"s", 1000}, {"ms", 1}, {"m", 60000}, {"h", 3600000}};

/* Leading decimal digits; the rest into *end. -EINVAL without a digit, -ERANGE above 64 bits. */
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

static int parse_size(const char *text, uint64_t *value)
{
	const char *end;
	int rc = parse_digits(text, value, &end);

	if (rc || !*end)
		return rc;
	for (size_t i = 0; i < sizeof(size_units) / sizeof(*size_units); i++) {
		if (tolower((unsigned char)*end) != *size_units[i].suffix)
			continue;
		if (end[1] && strcmp(end + 1, "i") != 0 && strcmp(end + 1, "iB") != 0)
			return -EINVAL;
		return __builtin_mul_overflow(*value, size_units[i].factor, value) ? -ERANGE : 0;
	}
	return -EINVAL;
}

static int parse_duration(const char *text, uint64_t *value)
{
	const char *end;
	int rc = parse_digits(text, value, &end);

	if (rc)
		return rc;
	for (size_t i = 0; i < sizeof(time_units) / sizeof(*time_units); i++)
		if (!strcmp(end, time_units[i].suffix))
			return __builtin_mul_overflow(*value, time_units[i].factor, value) ? -ERANGE
											   : 0;
	return -EINVAL;
}

/* Times ten to the power `exponent`, where that is whole. */
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

/* A size as it would be typed: 1048576 as 1m. */
static const char *typed_size(uint64_t nbytes, char buffer[32])
{
	unsigned unit = 0;
	static const char suffixes[] = "\0kmgtpe";

	while (nbytes && nbytes % 1024 == 0 && unit < 6) {
		nbytes /= 1024;
		unit++;
	}
	snprintf(buffer, 32, "%llu%.1s", (unsigned long long)nbytes, &suffixes[unit]);
	return buffer;
}

static int say_bounds(const struct option_spec *spec, const char *text)
{
	char min[32], max[32], multiple[32];
	unsigned long long from = spec->min, to = spec->max;

	switch (spec->type) {
	case OPTION_SIZE:
		say("--%s %s: allowed is a size from %s to %s%s%s, such as 4096, 4k, 1M or 1g",
		    spec->name, text, typed_size(spec->min, min), typed_size(spec->max, max),
		    spec->multiple ? " that is a multiple of " : "",
		    spec->multiple ? typed_size(spec->multiple, multiple) : "");
		break;
	case OPTION_DURATION:
		say("--%s %s: allowed is a time from %llu ms to %llu s, such as 30, 500ms, 5m or "
		    "1h",
		    spec->name, text, from, to / 1000);
		break;
	case OPTION_SHARE:
		say("--%s %s: allowed is a number above 0 and up to 1, such as 0.25", spec->name,
		    text);
		break;
	default:
		say("--%s %s: allowed is a whole number from %llu to %llu", spec->name, text, from,
		    to);
	}
	return -EINVAL;
}

static int store_number(const struct option_spec *spec, const char *text, void *where)
{
	uint64_t value = 0;
	int rc;

	if (spec->type == OPTION_SIZE)
		rc = parse_size(text, &value);
	else if (spec->type == OPTION_DURATION)
		rc = parse_duration(text, &value);
	else
		rc = parse_count(text, &value);
	if (rc || value < spec->min || value > spec->max ||
	    (spec->multiple && value % spec->multiple))
		return say_bounds(spec, text);
	memcpy(where, &value, sizeof(value));
	return 0;
}

static int store_share(const struct option_spec *spec, const char *text, void *where)
{
	char *end;
	double value = strtod(text, &end);

	/* strtod also takes " 1", "0x1p-1" and "nan". */
	if (*end || text[strspn(text, "0123456789.")] || !(value > 0 && value <= 1))
		return say_bounds(spec, text);
	memcpy(where, &value, sizeof(value));
	return 0;
}

static unsigned count_names(const char *const *names)
{
	unsigned n = 0;

	while (names[n])
		n++;
	return n;
}

static int store_choice(const struct option_spec *spec, const char *text, void *where)
{
	char allowed[256] = "";
	unsigned n = count_names(spec->choices);

	for (unsigned i = 0; i < n; i++) {
		if (!strcmp(text, spec->choices[i])) {
			memcpy(where, &i, sizeof(i));
			return 0;
		}
		snprintf(allowed + strlen(allowed), sizeof(allowed) - strlen(allowed), "%s%s",
			 !i	      ? ""
			 : i == n - 1 ? " and "
				      : ", ",
			 spec->choices[i]);
	}
	const char *nearest = nearest_name(text, spec->choices, n);

	say("--%s %s: allowed are %s%s%s%s", spec->name, text, allowed,
	    nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
	return -EINVAL;
}

static int store_item(const struct option_spec *spec, const char *text, void *where)
{
	struct option_list *list = where;

	if (list->n == NVS_PATHS_MAX) {
		say("--%s %s: given more than %u times", spec->name, text, NVS_PATHS_MAX);
		return -EINVAL;
	}
	list->items[list->n++] = text;
	return 0;
}

static int store(const struct option_spec *spec, const char *text, void *values)
{
	char *where = (char *)values + spec->offset;

	if (spec->argument && !*text) {
		say("--%s needs a value that is not empty: %s", spec->name, spec->argument);
		return -EINVAL;
	}
	switch (spec->type) {
	case OPTION_FLAG:
		memcpy(where, &(bool){true}, sizeof(bool));
		return 0;
	case OPTION_SHARE:
		return store_share(spec, text, where);
	case OPTION_CHOICE:
		return store_choice(spec, text, where);
	case OPTION_STRING:
		memcpy(where, &text, sizeof(text));
		return 0;
	case OPTION_LIST:
		return store_item(spec, text, where);
	default:
		return store_number(spec, text, where);
	}
}

/* Levenshtein's distance, up to `max`, of texts short enough to be option names. */
static unsigned edit_distance(const char *a, const char *b, unsigned max)
{
	unsigned row[48];
	size_t na = strlen(a), nb = strlen(b);

	if (nb >= sizeof(row) / sizeof(*row))
		return max + 1;
	for (unsigned j = 0; j <= nb; j++)
		row[j] = j;
	for (unsigned i = 1; i <= na; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= nb; j++) {
			unsigned changed = diagonal + (a[i - 1] != b[j - 1]);
			unsigned least = row[j] < row[j - 1] ? row[j] : row[j - 1];

			diagonal = row[j];
			row[j] = changed < least + 1 ? changed : least + 1;
		}
	}
	return row[nb];
}

const char *nearest_name(const char *text, const char *const *names, unsigned n)
{
	const char *nearest = NULL;
	/* Two slips, and fewer in a short word, where they would leave nothing of it. */
	unsigned best = strlen(text) < 5 ? 1 : 2;

	for (unsigned i = 0; i < n; i++) {
		unsigned distance = edit_distance(text, names[i], best);

		if (distance > best || (nearest && distance == best))
			continue;
		best = distance;
		nearest = names[i];
	}
	return nearest;
}

static bool begins_with(const char *text, const char *start)
{
	size_t n = strlen(start);

	return strncmp(text, start, n) == 0;
}

/* getopt returned '?': not an option, the beginning of several, or a flag with an argument. */
static int say_unknown(const struct command_spec *command, const char *typed)
{
	const char *names[OPTIONS_MAX + 1], *nearest;
	char text[128], several[256] = "";
	unsigned matches = 0;

	snprintf(text, sizeof(text), "%.*s", (int)strcspn(typed, "="), typed);
	for (unsigned i = 0; i < command->noptions; i++) {
		names[i] = command->options[i].name;
		if (!begins_with(text, "--") || !begins_with(names[i], text + 2))
			continue;
		snprintf(several + strlen(several), sizeof(several) - strlen(several), "%s--%s",
			 matches++ ? ", " : "", names[i]);
	}
	names[command->noptions] = "help";
	if (matches == 1)
		say("%s takes no value", text);
	else if (matches > 1)
		say("%s could be any of %s", text, several);
	else if ((nearest = nearest_name(text + strspn(text, "-"), names, command->noptions + 1)))
		say("%s is no option of %s; did you mean --%s?", text, command->name, nearest);
	else
		say("%s is no option of %s; see nvswap %s --help", text, command->name,
		    command->name);
	return -EINVAL;
}

static int check_exclusions(const struct command_spec *command, const struct options_given *given)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		for (unsigned j = 0; j < command->noptions && given->text[i] && spec->excludes; j++)
			for (const char *const *name = spec->excludes; *name; name++)
				if (given->text[j] && !strcmp(*name, command->options[j].name)) {
					say("--%s and --%s exclude each other: give one of them",
					    spec->name, *name);
					return -EINVAL;
				}
	}
	return 0;
}

static void fill_long_options(const struct command_spec *command, struct option *options)
{
	assert(command->noptions <= OPTIONS_MAX);
	for (unsigned i = 0; i < command->noptions; i++)
		options[i] = (struct option){
			.name = command->options[i].name,
			.has_arg = command->options[i].argument ? required_argument : no_argument,
			.val = VALUE(i)};
	options[command->noptions] = (struct option){.name = "help", .val = 'h'};
}

int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given)
{
	struct option options[OPTIONS_MAX + 2] = {{0}};
	int value, rc = 0;

	memset(given, 0, sizeof(*given));
	fill_long_options(command, options);
	opterr = 0;
	optind = 0; /* getopt forgets where it stood in an argument, too */
	while (!rc && (value = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (value == 'h')
			return OPTIONS_HELP;
		if (value == '?') {
			rc = say_unknown(command, argv[optind - 1]);
		} else if (value == ':') {
			say("%s needs a value; see nvswap %s --help", argv[optind - 1],
			    command->name);
			rc = -EINVAL;
		} else {
			assert(value >= VALUE(0) && value < VALUE(command->noptions));
			given->text[value - VALUE(0)] = optarg ? optarg : "1";
			rc = store(&command->options[value - VALUE(0)], optarg ? optarg : "",
				   values);
		}
	}
	if (!rc && optind < argc) {
		say("%s takes no arguments beside options, and got %s", command->name,
		    argv[optind]);
		rc = -EINVAL;
	}
	return rc ? rc : check_exclusions(command, given);
}
