/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the options as data for the bash completion, whose code is nvswap.bash.in.
 */
#include <string.h>

#include "option_docs.h"

static bool begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

/* The kind of an option's value, as nvswap.bash.in names it. */
static const char *kind_of(const struct option_spec *spec)
{
	if (spec->type == OPTION_CHOICE)
		return "word";
	if (spec->type == OPTION_CHOICES)
		return "words";
	if (spec->type == OPTION_FLAG)
		return "flag";
	if (begins_with(spec->argument, "DIR"))
		return "directory";
	if (begins_with(spec->argument, "FILE") || begins_with(spec->argument, "PREFIX"))
		return "file";
	return "value";
}

static void write_name(FILE *file, const char *command, const char *name)
{
	fprintf(file, "%s,--", command);
	for (; *name; name++)
		fputc(*name == '_' ? '-' : *name, file);
}

void completion_values(FILE *file, const struct command_spec *command)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (spec->scope == OPTION_OF_FILE)
			continue;
		fputc('\t', file);
		write_name(file, command->name, spec->name);
		for (const char *const *alias = spec->aliases; alias && *alias; alias++) {
			fputs(" | ", file);
			write_name(file, command->name, *alias);
		}
		fprintf(file, ")\n\t\tkind=%s", kind_of(spec));
		if (spec->choices || spec->type == OPTION_FLAG)
			fputs(" words='", file);
		if (spec->type == OPTION_FLAG)
			fputs("0 1", file);
		for (unsigned j = 0; spec->choices && spec->choices[j]; j++)
			fprintf(file, "%s%s", j ? " " : "", spec->choices[j]);
		fprintf(file, "%s\n\t\t;;\n",
			spec->choices || spec->type == OPTION_FLAG ? "'" : "");
	}
}

void completion_commands(FILE *file, const struct command_spec *command)
{
	fprintf(file, "\tcommands+=(%s)\n", command->name);
}

void completion_options(FILE *file, const struct command_spec *command)
{
	const char *operand = command->operand ? command->operand : "";

	fprintf(file, "\t%s)\n\t\toperand=%s\n\t\toptions='", command->name,
		strstr(operand, "FILE")	 ? "job"
		: strstr(operand, "DIR") ? "directory"
		: *operand		 ? "file"
					 : "none");
	for (unsigned i = 0; i < command->noptions; i++)
		if (command->options[i].scope != OPTION_OF_FILE)
			fprintf(file, "--%s ", command->options[i].name);
	fputs("--help'\n\t\t;;\n", file);
}
