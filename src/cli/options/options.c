/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the text of an option to its value, for the keys of job files and for the command line:
 * --name=value or --name value, where a name is an option's or an alias, with - or _; -h; and
 * operands anywhere, which -- ends options for.
 */
#include "cli/options/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/commands.h"

#define PART_BYTES 64 /* of one element of a list of choices */
#define NAMES_MAX  (4 * OPTIONS_MAX)
#define NS_OF_MS   1000000u

const char *const report_formats[] = {[REPORT_NORMAL] = "normal", [REPORT_JSON] = "json", NULL};
/* The library has their names. */
const char *ioengine_names[NVS_IOENGINE_COUNT + 1];

static void __attribute__((constructor)) name_ioengines(void)
{
	for (unsigned i = 0; i < NVS_IOENGINE_COUNT; i++)
		ioengine_names[i] = nvs_ioengine_name((enum nvs_ioengine)i);
}

/* All powers of 1024, fio's default. */
#define BYTES(letter, bits)                                                                        \
	{letter, 1ull << (bits)}, {letter "b", 1ull << (bits)}, {letter "i", 1ull << (bits)},      \
	{                                                                                          \
		letter "ib", 1ull << (bits)                                                        \
	}
const struct unit size_units[] = {{"", 1},	  BYTES("k", 10), BYTES("m", 20), BYTES("g", 30),
				  BYTES("t", 40), BYTES("p", 50), {NULL, 0}};
const struct unit time_units[] = {
	{"", 1000000000},   {"s", 1000000000},	  {"ms", 1000000},	 {"us", 1000}, {"ns", 1},
	{"m", 60000000000}, {"h", 3600000000000}, {"d", 86400000000000}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

bool read_amount(const char *text, const struct unit *units, uint64_t *value)
{
	uint64_t number = 0, places = 0, exponent = 0;
	bool fraction = false;
	char *end;

	for (const char *first = text; isdigit((unsigned char)*text) || text == first; text++) {
		if (!isdigit((unsigned char)*text) || __builtin_mul_overflow(number, 10, &number) ||
		    __builtin_add_overflow(number, (unsigned)(*text - '0'), &number))
			return false;
		places += fraction;
		if (text[1] == '.' && !fraction && isdigit((unsigned char)text[2])) {
			fraction = true;
			text++;
		}
	}
	if (tolower((unsigned char)*text) == 'e' &&
	    isdigit((unsigned char)text[1 + (text[1] == '+')])) {
		exponent = min_u64(strtoull(text + 1, &end, 10), 1u << 20);
		text = end;
	}
	while (units->name && strcasecmp(units->name, text) != 0)
		units++;
	if (!units->name || __builtin_mul_overflow(number, units->factor, &number))
		return false;
	for (; places > exponent && number; places--, number /= 10)
		if (number % 10)
			return false;
	for (; exponent > places && number; exponent--)
		if (__builtin_mul_overflow(number, 10, &number))
			return false;
	*value = number;
	return true;
}

/* ---- Names */

bool option_names_equal(const char *a, const char *b)
{
	while (*a && (*a == '_' ? '-' : *a) == (*b == '_' ? '-' : *b)) {
		a++;
		b++;
	}
	return !*a && !*b;
}

const struct option_spec *options_find(const struct command_spec *command, const char *name)
{
	const char *known;

	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned k = 0; (known = option_name(&command->options[i], k)); k++)
			if (option_names_equal(name, known))
				return &command->options[i];
	return NULL;
}

const char *options_instead_of(const struct command_spec *command, const char *name)
{
	for (const struct option_gone *gone = command->gone; gone && gone->name; gone++)
		if (option_names_equal(name, gone->name))
			return gone->instead;
	return NULL;
}

const char *options_nearest(const struct command_spec *command, const char *name,
			    enum option_scope without)
{
	const char *names[NAMES_MAX] = {"help"}, *known;
	unsigned n = without == OPTION_OF_FILE;

	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned k = 0; (known = option_name(&command->options[i], k)); k++)
			if (command->options[i].scope != without && n < NAMES_MAX)
				names[n++] = known;
	return nearest_name(name, names, n);
}

static bool lists(const struct option_spec *spec, const struct option_spec *other)
{
	for (const char *const *name = spec->excludes; name && *name; name++)
		if (!strcmp(*name, other->name))
			return true;
	return false;
}

bool options_exclude(const struct option_spec *a, const struct option_spec *b)
{
	return lists(a, b) || lists(b, a);
}

unsigned join_names(const char *const *names, char text[384])
{
	unsigned n = 0;

	*text = '\0';
	for (; names[n]; n++)
		snprintf(text + strlen(text), 384 - strlen(text), "%s%s",
			 !n		? ""
			 : names[n + 1] ? ", "
					: " and ",
			 names[n]);
	return n;
}

/* ---- Errors */

/* An option's text and where it was given. */
struct option_source {
	const struct option_spec *spec;
	const char *where; /* file and line; NULL: the command line */
	char *text;	   /* NULL: none */
};

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

/* A size as a user writes it: 1048576 as 1m. */
static const char *typed_size(uint64_t nbytes, char buffer[32])
{
	static const char letters[] = "\0kmgtp";
	unsigned unit = 0;

	for (; nbytes && nbytes % 1024 == 0 && unit < 5; unit++)
		nbytes /= 1024;
	snprintf(buffer, 32, "%llu%.1s", (unsigned long long)nbytes, letters + unit);
	return buffer;
}

/* ---- Values, by type */

static int store_number(const struct option_source *source, uint64_t *at)
{
	const struct option_spec *spec = source->spec;
	bool size = spec->type == OPTION_SIZE, time = spec->type == OPTION_DURATION;
	unsigned long long min = spec->min, max = spec->max;
	char least[32], most[32], multiple[32];
	const struct unit *units = size ? size_units : time ? time_units : no_units;
	uint64_t value, unit = time ? NS_OF_MS : spec->multiple ? spec->multiple : 1;

	if (read_amount(source->text, units, &value) && value % unit == 0 &&
	    (units == no_units || !strpbrk(source->text, ".eE"))) {
		value = time ? value / unit : value;
		if (value >= min && value <= max) {
			*at = value;
			return 0;
		}
	}
	if (size)
		return refuse(
			source,
			"allowed is a size from %s to %s%s%s, written like 4096, 4k, 1M or 1g",
			typed_size(min, least), typed_size(max, most),
			spec->multiple ? " that is a multiple of " : "",
			spec->multiple ? typed_size(spec->multiple, multiple) : "");
	if (time)
		return refuse(source,
			      "allowed is a time in whole milliseconds from %llu ms to %llu s, "
			      "written like 30, 500ms, 5m or 1h",
			      min, max / 1000);
	return refuse(source, "allowed is a whole number from %llu to %llu", min, max);
}

/* Digits with at most one point: strtod also takes " 1", "0x1p-1" and "nan". */
static int store_real(const struct option_source *source, double *at)
{
	bool share = source->spec->type == OPTION_SHARE;
	char *end;
	double value = strtod(source->text, &end);

	if (source->text[strspn(source->text, "0123456789.")] || *end ||
	    !(share ? value > 0 && value <= 1 : value <= 100))
		return refuse(source,
			      share ? "allowed is a number above 0 and up to 1, such as 0.25"
				    : "allowed is a number of per cent from 0 to 100, such as 2");
	*at = value;
	return 0;
}

/* Stores an index; or, of OPTION_CHOICES, which commas separate, a bit for each. */
static int store_choices(const struct option_source *source, unsigned *at)
{
	const struct option_spec *spec = source->spec;
	bool several = spec->type == OPTION_CHOICES;
	const char *text = source->text, *nearest;
	char allowed[384], part[PART_BYTES];
	unsigned n = join_names(spec->choices, allowed), bits = 0, choice;

	do {
		size_t length = strcspn(text, several ? "," : "");

		snprintf(part, sizeof(part), "%.*s", (int)length, text);
		for (choice = 0; choice < n && strcmp(part, spec->choices[choice]) != 0;)
			choice++;
		bits |= 1u << choice % 32;
		text += length;
	} while (choice < n && *text++);
	if (choice < n) {
		*at = several ? bits : choice;
		return 0;
	}
	for (const struct option_gone *gone = spec->elsewhere; gone && gone->name; gone++)
		if (strlen(gone->name) == strcspn(part, ":") &&
		    !strncmp(part, gone->name, strlen(gone->name)))
			return refuse(source, "%s. Allowed here are %s", gone->instead, allowed);
	nearest = nearest_name(part, spec->choices, n);
	return refuse(source, "allowed are %s%s%s%s", allowed, nearest ? "; did you mean " : "",
		      nearest ? nearest : "", nearest ? "?" : "");
}

static int store_flag(const struct option_source *source, bool *at)
{
	const char *text = source->text ? source->text : "1";
	bool on = !strcmp(text, "1");

	if (!on && strcmp(text, "0") != 0)
		return refuse(source, "allowed are 0 and 1, or no value, which is 1");
	if (on < source->spec->min)
		return refuse(source, "only 1 is supported");
	*at = on;
	return 0;
}

/* Cuts the text. A repeated option extends the list; a line of a file replaces it. */
static int store_list(const struct option_source *source, struct option_list *list)
{
	char *rest = source->text;

	if (*rest == ':' || strstr(rest, "::") || rest[strlen(rest) - 1] == ':')
		return refuse(source, "a name between the colons is empty");
	if (source->where)
		list->n = 0;
	while (rest) {
		if (list->n == NVS_PATHS_MAX)
			return refuse(source, "given more than %u times", NVS_PATHS_MAX);
		list->items[list->n++] = strsep(&rest, ":");
	}
	return 0;
}

size_t option_value_bytes(enum option_type type)
{
	static const size_t nbytes[] = {
		[OPTION_FLAG] = sizeof(bool),		[OPTION_COUNT] = sizeof(uint64_t),
		[OPTION_SIZE] = sizeof(uint64_t),	[OPTION_DURATION] = sizeof(uint64_t),
		[OPTION_SHARE] = sizeof(double),	[OPTION_CHOICE] = sizeof(unsigned),
		[OPTION_STRING] = sizeof(const char *), [OPTION_LIST] = sizeof(struct option_list),
		[OPTION_CHOICES] = sizeof(unsigned),	[OPTION_PERCENT] = sizeof(double),
	};

	return nbytes[type];
}

/* Stores the value at `at`. -EINVAL after printing the reason. */
static int option_store(const struct option_source *source, void *at)
{
	const struct option_spec *spec = source->spec;
	const char *where = source->where;

	if (source->text ? !*source->text : spec->type != OPTION_FLAG)
		return REFUSE(-EINVAL, "%s%s%s needs a value that is not empty: %s",
			      where ? where : "", where ? ": " : "--", spec->name,
			      spec->argument ? spec->argument : "0 or 1");
	switch (spec->type) {
	case OPTION_FLAG:
		return store_flag(source, at);
	case OPTION_COUNT:
	case OPTION_SIZE:
	case OPTION_DURATION:
		return store_number(source, at);
	case OPTION_SHARE:
	case OPTION_PERCENT:
		return store_real(source, at);
	case OPTION_CHOICE:
	case OPTION_CHOICES:
		return store_choices(source, at);
	case OPTION_LIST:
		return store_list(source, at);
	case OPTION_STRING:
		*(const char **)at = source->text;
	}
	return 0;
}

int options_set(const struct command_spec *command, const char *key, char *value, const char *where,
		void *values, struct options_given *given)
{
	const struct option_spec *spec = options_find(command, key);
	const struct option_source source = {.spec = spec, .where = where, .text = value};
	int rc;

	if (!spec)
		return -ENOENT;
	if (spec->scope == OPTION_OF_LINE)
		return REFUSE(-EINVAL, "%s: %s is only a command-line option, --%s", where, key,
			      spec->name);
	rc = option_store(&source, (char *)values + spec->offset);
	for (unsigned i = 0; i < command->noptions && !rc; i++) {
		const struct option_spec *other = &command->options[i];

		if (!given->text[i] || !options_exclude(spec, other))
			continue;
		memcpy((char *)values + other->offset,
		       (const char *)command->defaults + other->offset,
		       option_value_bytes(other->type));
		given->text[i] = NULL;
	}
	if (!rc)
		given->text[spec - command->options] = value ? value : "1";
	return rc;
}

/* ---- The command line */

/* Takes argv[*i], and its value, which may be the next. */
static int take_option(const struct command_spec *command, char **argv, int *i, void *values,
		       struct options_given *given)
{
	char *argument = argv[*i], *value = strchr(argument, '='), name[64];
	const struct option_spec *spec;
	const char *instead, *nearest;
	struct option_source source;
	size_t dashes = strspn(argument, "-");

	if (!strcmp(argument, "-h") || !strcmp(argument, "--help"))
		return OPTIONS_HELP;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(argument + dashes, "="),
		 argument + dashes);
	spec = options_find(command, name);
	if (!spec || dashes != 2 || spec->scope == OPTION_OF_FILE) {
		argument[strcspn(argument, "=")] = '\0';
		if (!strcmp(argument, "--help"))
			say("--help takes no value");
		else if ((instead = options_instead_of(command, name)))
			say("%s is no longer an option of %s: %s", argument, command->name,
			    instead);
		else if (spec && spec->scope == OPTION_OF_FILE)
			say("%s is only a key of job files", argument);
		else if ((nearest = options_nearest(command, name, OPTION_OF_FILE)))
			say("%s is not an option of %s; did you mean --%s?", argument,
			    command->name, nearest);
		else
			say("%s is not an option of %s; see nvswap %s --help", argument,
			    command->name, command->name);
		return -EINVAL;
	}
	if (!value && spec->type != OPTION_FLAG && !argv[*i + 1])
		return REFUSE(-EINVAL, "%s needs a value; see nvswap %s --help", argument,
			      command->name);
	source = (struct option_source){.spec = spec, .text = value ? value + 1 : NULL};
	if (!value && spec->type != OPTION_FLAG)
		source.text = argv[++*i];
	given->text[spec - command->options] = source.text ? source.text : "1";
	return option_store(&source, (char *)values + spec->offset);
}

int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given)
{
	const struct option_spec *specs = command->options;
	bool ended = false; /* options, by -- */
	int rc = 0;

	assert(command->noptions <= OPTIONS_MAX);
	*given = (struct options_given){.operands = argv + 1};
	for (int i = 1; i < argc && !rc; i++) {
		if (ended || argv[i][0] != '-' || !argv[i][1])
			given->operands[given->noperands++] = argv[i];
		else if (!strcmp(argv[i], "--"))
			ended = true;
		else
			rc = take_option(command, argv, &i, values, given);
	}
	if (!rc && given->noperands && !command->operand)
		return REFUSE(-EINVAL, "%s takes no arguments beside options, and got %s",
			      command->name, given->operands[0]);
	if (rc)
		return rc;
	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned j = 0; j < i && given->text[i]; j++)
			if (given->text[j] && options_exclude(&specs[i], &specs[j]))
				return REFUSE(-EINVAL,
					      "--%s and --%s exclude each other: give one of them",
					      specs[i].name, specs[j].name);
	return 0;
}
