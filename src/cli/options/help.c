/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --help, from the table that the parser uses. */
#include <string.h>

#include "cli/commands.h"
#include "cli/options/options.h"

#define COLUMN 26 /* column in which an option's text begins */
#define WIDTH  80 /* columns of a terminal */

void write_wrapped(FILE *file, const char *text, size_t indent)
{
	size_t column = indent;

	for (size_t length; *text; text += length + (text[length] != '\0')) {
		length = strcspn(text, " \n");
		if (!length && *text == '\n') {
			fputs("\n\n", file);
			column = indent;
		} else if (column > indent && column + 1 + length > WIDTH) {
			fprintf(file, "\n%*s", (int)indent, "");
			column = indent;
		} else if (column > indent) {
			fputc(' ', file);
			column++;
		}
		fprintf(file, "%.*s", (int)length, text);
		column += length;
	}
	fputc('\n', file);
}

/* Writes "--name a|b|c" or "--name ARGUMENT", and what it does. */
static void write_option(FILE *file, const struct option_spec *spec)
{
	const char *dashes = spec->scope == OPTION_OF_FILE ? "" : "--", *alias;
	int column = fprintf(file, "  %s%s", dashes, spec->name), indent = column + 1;
	bool several = false; /* lines */

	if (spec->argument && !spec->choices)
		column += fprintf(file, " %s", spec->argument);
	for (unsigned i = 0; spec->choices && spec->choices[i]; i++) {
		bool wraps = i && column + 1 + (int)strlen(spec->choices[i]) >= WIDTH;

		if (wraps)
			column = fprintf(file, "|\n%*s", indent, "") - 2;
		column += fprintf(file, "%s%s", wraps ? "" : i ? "|" : " ", spec->choices[i]);
		several |= wraps;
	}
	if (several || column > COLUMN - 2) {
		fputc('\n', file);
		column = 0;
	}
	fprintf(file, "%*s", COLUMN - column, "");
	write_wrapped(file, spec->help, COLUMN);
	for (unsigned k = 1; (alias = option_name(spec, k)); k++)
		fprintf(file, "%*salso %s%s\n", COLUMN, "", dashes, alias);
}

/* Writes the command-line options, or, under a title, the keys that only job files have. */
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
	fprintf(output.file, "usage: nvswap %s [OPTION]...%s%s\n\n", command->name,
		command->operand ? " " : "", command->operand ? command->operand : "");
	write_wrapped(output.file, command->summary, 0);
	fputc('\n', output.file);
	write_options(output.file, command, false);
	fprintf(output.file, "  %-*s this text\n", COLUMN - 3, "-h, --help");
	write_options(output.file, command, true);
	if (command->notes) {
		fputc('\n', output.file);
		write_wrapped(output.file, command->notes, 0);
	}
	return output_close(&output);
}
