/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes options as mdoc, from the text of their help.
 */
#include <ctype.h>
#include <string.h>

#include "option_docs.h"

/* A key or a value at the begin of a text is not capitalized. */
static bool begins_with_name(const char *text, const struct option_spec *spec)
{
	size_t length = strcspn(text, " ,:");

	for (unsigned i = 0; spec->choices && spec->choices[i]; i++)
		if (strlen(spec->choices[i]) == length && !strncmp(text, spec->choices[i], length))
			return true;
	return strcspn(text, "._=") < length;
}

/*
 * Writes plain text as mdoc: capitalized, ending in a full stop, one sentence a line, with mdoc
 * requests escaped.
 */
static void write_help(FILE *file, const struct option_spec *spec)
{
	const char *text = spec->help;
	char last = '\n', before_last = '\0';

	fputc(begins_with_name(text, spec) ? *text : toupper((unsigned char)*text), file);
	for (text++; *text; before_last = last, last = *text++) {
		if (*text == '\\')
			fputs("\\e", file);
		else if (*text == '-' && (text[1] == '-' || last == '-'))
			fputs("\\-", file);
		else if (*text == ' ' && last == '.' && before_last != '.')
			fputc('\n', file);
		else if (last == '\n' && strchr(".'", *text))
			fprintf(file, "\\&%c", *text);
		else
			fputc(*text, file);
	}
	fputs(".\n", file);
}

static void write_lower(FILE *file, const char *text)
{
	for (; *text; text++)
		fputc(tolower((unsigned char)*text), file);
}

static void write_value(FILE *file, const struct option_spec *spec)
{
	if (spec->choices && spec->argument) {
		for (unsigned i = 0; spec->choices[i]; i++)
			fprintf(file, " %s %s", i ? "|" : "Cm", spec->choices[i]);
	} else if (spec->argument) {
		fputs(" Ar ", file);
		write_lower(file, spec->argument);
	}
}

static void write_aliases(FILE *file, const struct option_spec *spec, const char *macro)
{
	for (const char *const *alias = spec->aliases; alias && *alias; alias++)
		fprintf(file, "%s\n.%s%s .\n", alias == spec->aliases ? "Also" : "and", macro,
			*alias);
}

void manual_synopsis(FILE *file, const struct command_spec *command)
{
	fprintf(file, ".Nm\n.Cm %s\n.Op Ar option ...\n", command->name);
	if (!command->operand)
		return;
	if (*command->operand == '[') {
		fputs(".Op Ar file.ini ...\n", file);
	} else {
		fputs(".Ar ", file);
		write_lower(file, command->operand);
		fputc('\n', file);
	}
}

void manual_options(FILE *file, const struct command_spec *command)
{
	fputs(".Bl -tag -width Ds\n", file);
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (spec->scope == OPTION_OF_FILE)
			continue;
		fprintf(file, ".It Fl -%s", spec->name);
		write_value(file, spec);
		fputc('\n', file);
		write_help(file, spec);
		write_aliases(file, spec, "Fl -");
		if (spec->scope == OPTION_OF_LINE)
			fputs("Only on the command line.\n", file);
		else if (spec->scope == OPTION_OF_RUN)
			fputs("In job files, only in\n.Li [global] .\n", file);
	}
	fputs(".El\n", file);
}

void manual_file_keys(FILE *file, const struct command_spec *command)
{
	fputs(".Bl -tag -width Ds\n", file);
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (spec->scope != OPTION_OF_FILE)
			continue;
		fprintf(file, ".It Cm %s\n", spec->name);
		write_help(file, spec);
		write_aliases(file, spec, "Cm ");
	}
	fputs(".El\n", file);
}
