/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookup by name, setting a value from a job file, and options that exclude each other. Values are
 * parsed in values.c, the command line in line.c.
 */
#include "cli/options/options.h"

#include <errno.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options/report_options.h"
#include "cli/options/values.h"

const char *const report_formats[] = {[REPORT_NORMAL] = "normal", [REPORT_JSON] = "json", NULL};
/* The library has their names. */
const char *ioengine_names[NVS_IOENGINE_COUNT + 1];

static void __attribute__((constructor)) name_ioengines(void)
{
	for (unsigned i = 0; i < NVS_IOENGINE_COUNT; i++)
		ioengine_names[i] = nvs_ioengine_name((enum nvs_ioengine)i);
}

static char dashed(char letter)
{
	return letter == '_' ? '-' : letter;
}

bool option_names_equal(const char *a, const char *b)
{
	while (*a && dashed(*a) == dashed(*b)) {
		a++;
		b++;
	}
	return !*a && !*b;
}

const struct option_spec *options_find(const struct command_spec *command, const char *name)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (option_names_equal(name, spec->name))
			return spec;
		for (const char *const *alias = spec->aliases; alias && *alias; alias++)
			if (option_names_equal(name, *alias))
				return spec;
	}
	return NULL;
}

const char *options_instead_of(const struct command_spec *command, const char *name)
{
	for (const struct option_gone *gone = command->gone; gone && gone->name; gone++)
		if (option_names_equal(name, gone->name))
			return gone->instead;
	return NULL;
}

static bool lists(const struct option_spec *spec, const struct option_spec *other)
{
	for (const char *const *name = spec->excludes; name && *name; name++)
		if (!strcmp(*name, other->name))
			return true;
	return false;
}

/* Either may list the other. */
static bool exclude_each_other(const struct option_spec *a, const struct option_spec *b)
{
	return lists(a, b) || lists(b, a);
}

int options_check_exclusions(const struct command_spec *command, const struct options_given *given,
			     const char *where)
{
	const struct option_spec *specs = command->options;

	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned j = 0; j < i && given->text[i]; j++) {
			if (!given->text[j] || !exclude_each_other(&specs[i], &specs[j]))
				continue;
			say("%s%s%s and %s%s exclude each other: give one of them",
			    where ? where : "", where ? ": " : "--", specs[i].name,
			    where ? "" : "--", specs[j].name);
			return -EINVAL;
		}
	return 0;
}

/* The option given later wins: those that it excludes get their defaults back. */
static void clear_excluded(const struct command_spec *command, const struct option_spec *spec,
			   void *values, struct options_given *given)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *other = &command->options[i];

		if (!given->text[i] || !exclude_each_other(spec, other))
			continue;
		memcpy((char *)values + other->offset,
		       (const char *)command->defaults + other->offset,
		       option_value_bytes(other->type));
		given->text[i] = NULL;
	}
}

int options_set(const struct command_spec *command, const char *key, const char *value,
		const char *where, void *values, struct options_given *given)
{
	const struct option_spec *spec = options_find(command, key);
	struct option_source source = {.spec = spec, .where = where, .text = value};
	int rc;

	if (!spec)
		return -ENOENT;
	if (spec->scope == OPTION_OF_LINE) {
		say("%s: %s is only a command-line option, --%s", where, key, spec->name);
		return -EINVAL;
	}
	rc = option_store(&source, (char *)values + spec->offset);
	if (rc)
		return rc;
	clear_excluded(command, spec, values, given);
	given->text[spec - command->options] = value ? value : "1";
	return 0;
}

void options_copy(const struct command_spec *command, const void *from,
		  const struct options_given *from_given, void *to, struct options_given *to_given)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (!from_given->text[i])
			continue;
		clear_excluded(command, spec, to, to_given);
		memcpy((char *)to + spec->offset, (const char *)from + spec->offset,
		       option_value_bytes(spec->type));
		to_given->text[i] = from_given->text[i];
	}
}
