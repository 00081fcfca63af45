/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: --name=value or --name value, where a name is an option's or an alias, with - or
 * _; -h; and operands anywhere, which -- ends options for.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options/options.h"

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
	if (!value && spec->type != OPTION_FLAG && !argv[*i + 1]) {
		say("%s needs a value; see nvswap %s --help", argument, command->name);
		return -EINVAL;
	}
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
	if (!rc && given->noperands && !command->operand) {
		say("%s takes no arguments beside options, and got %s", command->name,
		    given->operands[0]);
		return -EINVAL;
	}
	if (rc)
		return rc;
	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned j = 0; j < i && given->text[i]; j++)
			if (given->text[j] && options_exclude(&specs[i], &specs[j])) {
				say("--%s and --%s exclude each other: give one of them",
				    specs[i].name, specs[j].name);
				return -EINVAL;
			}
	return 0;
}
