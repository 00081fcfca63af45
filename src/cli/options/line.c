/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: --name=value or --name value, where a name is an option's or an alias, with - or
 * _, or the beginning of one option's names; -h; and operands anywhere, which -- ends options for.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/options/options.h"

static const struct option_spec help = {.name = "help", .type = OPTION_FLAG};

/* Whether the name begins with the n typed letters. */
static bool begins_with(const char *name, const char *typed, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((name[i] == '_' ? '-' : name[i]) != (typed[i] == '_' ? '-' : typed[i]))
			return false;
	return true;
}

/* The option of the n typed letters, or NULL; `several` gets the names that they may stand for. */
static const struct option_spec *find_typed(const struct command_spec *command, const char *typed,
					    size_t n, char several[512])
{
	const struct option_spec *found = NULL;
	bool ambiguous = false;
	const char *name;

	*several = '\0';
	for (unsigned i = 0; n && i <= command->noptions; i++) {
		const struct option_spec *spec = i < command->noptions ? &command->options[i]
								       : &help;

		for (unsigned k = 0; (name = option_name(spec, k)); k++) {
			if (spec->scope == OPTION_OF_FILE || !begins_with(name, typed, n))
				continue;
			if (!name[n])
				return spec;
			snprintf(several + strlen(several), 512 - strlen(several), "%s--%s",
				 *several ? ", " : "", name);
			ambiguous |= found && found != spec;
			found = spec;
		}
	}
	return ambiguous ? NULL : found;
}

/* Takes argv[*i], and its value, which may be the next. */
static int take_option(const struct command_spec *command, char **argv, int *i, void *values,
		       struct options_given *given)
{
	char *argument = argv[*i], *value = strchr(argument, '='), several[512] = "";
	const struct option_spec *spec = NULL;
	size_t length = value ? (size_t)(value - argument) : strlen(argument);
	struct option_source source;

	if (!strcmp(argument, "-h"))
		return OPTIONS_HELP;
	if (argument[1] == '-')
		spec = find_typed(command, argument + 2, length - 2, several);
	if (!spec) {
		/* With one or two dashes. */
		const char *name = argument + strspn(argument, "-"), *instead, *nearest;

		argument[strcspn(argument, "=")] = '\0';
		spec = options_find(command, name);
		if (*several)
			say("%s is ambiguous: %s", argument, several);
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
	if (spec == &help && value)
		say("--help takes no value");
	if (spec == &help)
		return value ? -EINVAL : OPTIONS_HELP;
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
