/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of --help, from the same table that the parser goes by.
 */
#include "commands.h"
#include "options.h"

#define COLUMN 26 /* where the text of an option begins */

/* "  --name ARGUMENT"; a key of job files alone has no dashes. The characters written. */
static int write_heading(FILE *file, const struct option_spec *spec)
{
	int n = fprintf(file, "  %s%s", spec->scope == OPTION_OF_FILE ? "" : "--", spec->name);

	if (spec->choices && spec->argument)
		for (unsigned i = 0; spec->choices[i]; i++)
			n += fprintf(file, "%c%s", i ? '|' : ' ', spec->choices[i]);
	else if (spec->argument)
		n += fprintf(file, " %s", spec->argument);
	return n;
}

static void write_option(FILE *file, const struct option_spec *spec)
{
	int n = write_heading(file, spec);

	if (n > COLUMN - 2) {
		fputc('\n', file);
		n = 0;
	}
	fprintf(file, "%*s", COLUMN - n, "");
	for (const char *letter = spec->help; *letter; letter++) {
		fputc(*letter, file);
		if (*letter == '\n')
			fprintf(file, "%*s", COLUMN, "");
	}
	for (const char *const *alias = spec->aliases; alias && *alias; alias++)
		fprintf(file, "\n%*salso %s%s", COLUMN, "",
			spec->scope == OPTION_OF_FILE ? "" : "--", *alias);
	fputc('\n', file);
}

/* Those that are typed, or after a title those of job files alone, if there are any. */
static void write_options(FILE *file, const struct command_spec *command, bool of_file)
{
	bool titled = !of_file;

	for (unsigned i = 0; i < command->noptions; i++) {
		if ((command->options[i].scope == OPTION_OF_FILE) != of_file)
			continue;
		if (!titled)
			fputs("\nKeys of job files alone:\n", file);
		titled = true;
		write_option(file, &command->options[i]);
	}
}

int options_help(const struct command_spec *command)
{
	struct output output;

	if (output_open(&output, NULL))
		return STATUS_FAILED;
	fprintf(output.file, "usage: nvswap %s [OPTION]...%s%s\n\n%s\n\n", command->name,
		command->operand ? " " : "", command->operand ? command->operand : "",
		command->summary);
	write_options(output.file, command, false);
	fprintf(output.file, "  %-*s this text\n", COLUMN - 3, "-h, --help");
	write_options(output.file, command, true);
	if (command->notes)
		fprintf(output.file, "\n%s\n", command->notes);
	return output_close(&output);
}
