/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line, on getopt_long: names and aliases with - or _, unique abbreviations, and the
 * error messages for unknown names.
 */
#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/commands.h"
#include "cli/options/values.h"

/* getopt's value for option i, distinct from '?' and ':'. */
#define VALUE(i)  (1000 + (int)(i))
#define HELP	  999
#define NAMES_MAX (3 * OPTIONS_MAX)
#define NAME_MAX  32

/* getopt_long's options: a name with - or _ needs an entry for each spelling. */
struct line_names {
	struct option options[NAMES_MAX + 1]; /* ended by one without a name */
	char text[NAMES_MAX][NAME_MAX];
	unsigned n;
};

static void spell(char text[NAME_MAX], const char *name, char dash)
{
	size_t i = 0;

	assert(strlen(name) < NAME_MAX);
	for (; name[i]; i++)
		text[i] = name[i] == '-' || name[i] == '_' ? dash : name[i];
	text[i] = '\0';
}

static void add_name(struct line_names *names, const char *name, int has_arg, int value)
{
	for (unsigned spelling = 0; spelling < (strpbrk(name, "-_") ? 2 : 1); spelling++) {
		assert(names->n < NAMES_MAX);
		spell(names->text[names->n], name, "-_"[spelling]);
		names->options[names->n] = (struct option){
			.name = names->text[names->n], .has_arg = has_arg, .val = value};
		names->n++;
	}
}

static void fill_names(const struct command_spec *command, struct line_names *names)
{
	assert(command->noptions <= OPTIONS_MAX);
	memset(names, 0, sizeof(*names));
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];
		int has_arg = spec->type == OPTION_FLAG ? optional_argument : required_argument;

		if (spec->scope == OPTION_OF_FILE)
			continue;
		add_name(names, spec->name, has_arg, VALUE(i));
		for (const char *const *alias = spec->aliases; alias && *alias; alias++)
			add_name(names, *alias, has_arg, VALUE(i));
	}
	add_name(names, "help", no_argument, HELP);
}

/* The names of the last command that was asked for: a process has one. */
static const struct line_names *names_of(const struct command_spec *command)
{
	static const struct command_spec *filled;
	static struct line_names cache;

	if (filled != command)
		fill_names(command, &cache);
	filled = command;
	return &cache;
}

/* Writes the names that begin with `start` as "--a, --b". Returns their number. */
static unsigned begin_with(const struct line_names *names, const char *start, char *text,
			   size_t nbytes)
{
	unsigned matches = 0;

	*text = '\0';
	for (unsigned i = 0; i < names->n; i++)
		if (!strchr(names->text[i], '_') && !strncmp(names->text[i], start, strlen(start)))
			snprintf(text + strlen(text), nbytes - strlen(text), "%s--%s",
				 matches++ ? ", " : "", names->text[i]);
	return matches;
}

/* The argument that getopt refused: of an unknown letter with more behind it, it is still there. */
static const char *refused_argument(char **argv)
{
	const char *last = argv[optind - 1];
	bool letter = optopt > 0 && optopt < HELP;

	return letter && (last[0] != '-' || last[1] != optopt || last[2]) ? argv[optind] : last;
}

/* getopt returned '?': an unknown name, an ambiguous one, or a value for an option without one. */
static int say_unknown(const struct command_spec *command, const struct line_names *names,
		       const char *typed)
{
	const char *spellings[NAMES_MAX], *nearest, *instead;
	const struct option_spec *spec;
	char text[128], several[512];
	const char *bare;
	unsigned matches;

	snprintf(text, sizeof(text), "%.*s", (int)strcspn(typed, "="), typed);
	for (char *letter = text; *letter; letter++)
		*letter = *letter == '_' ? '-' : *letter;
	bare = text + strspn(text, "-");
	for (unsigned i = 0; i < names->n; i++)
		spellings[i] = names->text[i];
	matches = bare == text + 2 ? begin_with(names, bare, several, sizeof(several)) : 0;
	spec = options_find(command, bare);
	if (matches == 1)
		say("%s takes no value", text);
	else if (matches > 1)
		say("%s is ambiguous: %s", text, several);
	else if ((instead = options_instead_of(command, bare)))
		say("%s is no longer an option of %s: %s", text, command->name, instead);
	else if (spec && spec->scope == OPTION_OF_FILE)
		say("%s is only a key of job files", text);
	else if ((nearest = nearest_name(bare, spellings, names->n)))
		say("%s is not an option of %s; did you mean --%s?", text, command->name, nearest);
	else
		say("%s is not an option of %s; see nvswap %s --help", text, command->name,
		    command->name);
	return -EINVAL;
}

static int store_typed(const struct command_spec *command, unsigned i, const char *text,
		       void *values, struct options_given *given)
{
	struct option_source source = {.spec = &command->options[i], .text = text};

	assert(i < command->noptions);
	given->text[i] = text ? text : "1";
	return option_store(&source, (char *)values + command->options[i].offset);
}

static int take_operands(const struct command_spec *command, int argc, char **argv,
			 struct options_given *given)
{
	if (optind < argc && !command->operand) {
		say("%s takes no arguments beside options, and got %s", command->name,
		    argv[optind]);
		return -EINVAL;
	}
	given->operands = argv + optind;
	given->noperands = (unsigned)(argc - optind);
	return 0;
}

int options_parse(const struct command_spec *command, int argc, char **argv, void *values,
		  struct options_given *given)
{
	const struct line_names *names = names_of(command);
	int value, rc = 0;

	memset(given, 0, sizeof(*given));
	opterr = 0;
	optind = 0; /* also resets getopt's place within an argument */
	while (!rc && (value = getopt_long(argc, argv, ":h", names->options, NULL)) != -1) {
		if (value == 'h' || value == HELP)
			return OPTIONS_HELP;
		if (value == '?') {
			rc = say_unknown(command, names, refused_argument(argv));
		} else if (value == ':') {
			say("%s needs a value; see nvswap %s --help", argv[optind - 1],
			    command->name);
			rc = -EINVAL;
		} else {
			rc = store_typed(command, (unsigned)(value - VALUE(0)), optarg, values,
					 given);
		}
	}
	if (!rc)
		rc = take_operands(command, argc, argv, given);
	return rc ? rc : options_check_exclusions(command, given, NULL);
}
