/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of --help, from the table that the parser uses.
 */
#include <string.h>

#include "cli/commands.h"
#include "cli/options/options.h"

#define COLUMN 26 /* column in which an option's text begins */
#define WIDTH  80 /* columns of a terminal */

/* Writes "a|b|c" from that column on, in lines of at most WIDTH. Returns WIDTH after several. */
static int write_choices(FILE *file, const char *const *choices, int column)
{
	int indent = column, widest = 0;

	for (unsigned i = 0; choices[i]; i++) {
		int length = (int)strlen(choices[i]);

		if (i && column + 1 + length >= WIDTH) {
			fprintf(file, "|\n%*s", indent, "");
			column = indent;
			widest = WIDTH;
		} else if (i) {
			fputc('|', file);
			column++;
		}
		fputs(choices[i], file);
		column += length;
	}
	return widest > column ? widest : column;
}

/*
 * Writes "  --name ARGUMENT", or a key of job files without dashes. Returns the number of
 * columns.
 */
static int write_heading(FILE *file, const struct option_spec *spec)
{
	int n = fprintf(file, "  %s%s", spec->scope == OPTION_OF_FILE ? "" : "--", spec->name);

	if (!spec->argument)
		return n;
	n += fprintf(file, " ");
	return spec->choices ? write_choices(file, spec->choices, n)
			     : n + fprintf(file, "%s", spec->argument);
}

/* Fills lines of at most WIDTH columns from `indent` on; an empty line separates paragraphs. */
static void write_wrapped(FILE *file, const char *text, size_t indent)
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

static void write_option(FILE *file, const struct option_spec *spec)
{
	int n = write_heading(file, spec);

	if (n > COLUMN - 2) {
		fputc('\n', file);
		n = 0;
	}
	fprintf(file, "%*s", COLUMN - n, "");
	write_wrapped(file, spec->help, COLUMN);
	for (const char *const *alias = spec->aliases; alias && *alias; alias++)
		fprintf(file, "%*salso %s%s\n", COLUMN, "",
			spec->scope == OPTION_OF_FILE ? "" : "--", *alias);
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
