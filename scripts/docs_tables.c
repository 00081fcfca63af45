/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes options as tables in Markdown.
 */
#include <string.h>

#include "option_docs.h"

/* Writes text on one line and escapes characters that would end the cell. */
static void write_cell(FILE *file, const char *text)
{
	for (; *text; text++) {
		if (strchr("|\\<>*_[]", *text))
			fputc('\\', file);
		fputc(*text == '\n' ? ' ' : *text, file);
	}
}

static void write_key(FILE *file, const char *name)
{
	fputc('`', file);
	for (; *name; name++)
		fputc(*name == '-' ? '_' : *name, file);
	fputc('`', file);
}

static const char *place_of(enum option_scope scope)
{
	return scope == OPTION_OF_RUN	 ? "`[global]`, command line"
	       : scope == OPTION_OF_FILE ? "job file"
					 : "";
}

void table_of_keys(FILE *file, const struct command_spec *command)
{
	fputs("\n| key | value | there alone | |\n| --- | --- | --- | --- |\n", file);
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (spec->scope == OPTION_OF_LINE)
			continue;
		fputs("| ", file);
		write_key(file, spec->name);
		for (const char *const *alias = spec->aliases; alias && *alias; alias++) {
			fputs(", ", file);
			write_key(file, *alias);
		}
		fputs(" | ", file);
		for (unsigned j = 0; spec->choices && spec->choices[j] && spec->argument; j++)
			fprintf(file, "%s`%s`", j ? ", " : "", spec->choices[j]);
		if (spec->type == OPTION_FLAG)
			fputs("`0`, `1` or none", file);
		else if (!spec->choices)
			write_cell(file, spec->argument);
		fprintf(file, " | %s | ", place_of(spec->scope));
		write_cell(file, spec->help);
		fputs(" |\n", file);
	}
	fputc('\n', file);
}

/* The length of the first sentence, without its full stop. */
static size_t sentence_length(const char *text)
{
	size_t n = strcspn(text, ".");

	while (text[n] && text[n + 1] && !strchr(" \n", text[n + 1]))
		n += 1 + strcspn(text + n + 1, ".");
	return n;
}

void table_of_commands(FILE *file, const struct command_spec *command)
{
	char sentence[512];

	snprintf(sentence, sizeof(sentence), "%.*s", (int)sentence_length(command->summary),
		 command->summary);
	if (command == documented_commands[0])
		fputs("\n| command | |\n| --- | --- |\n", file);
	fprintf(file, "| `nvswap %s [OPTION]...%s%s` | ", command->name,
		command->operand ? " " : "", command->operand ? command->operand : "");
	write_cell(file, sentence);
	fputs(" |\n", file);
	for (unsigned i = 0; documented_commands[i]; i++)
		if (documented_commands[i] == command && !documented_commands[i + 1])
			fputc('\n', file);
}
