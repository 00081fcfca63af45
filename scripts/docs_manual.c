/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options as mdoc: what the table has for the manual page, or else the text of the help.
 */
#include <ctype.h>
#include <string.h>

#include "option_docs.h"

/* Whether it begins with the name of a key, which has no capital. */
static bool begins_with_key(const char *text)
{
	return strcspn(text, "._=") < strcspn(text, " ");
}

/*
 * Plain text as mdoc: a first letter, a full stop, each sentence on a line of its own, and nothing
 * that is a request.
 */
static void write_sentences(FILE *file, const char *text)
{
	char last = '\n', before_last = '\0';

	fputc(begins_with_key(text) ? *text : toupper((unsigned char)*text), file);
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

static void write_body(FILE *file, const struct option_spec *spec)
{
	if (spec->manual)
		fprintf(file, "%s\n", spec->manual);
	else
		write_sentences(file, spec->help);
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
		write_body(file, spec);
		write_aliases(file, spec, "Fl -");
		if (spec->scope == OPTION_OF_LINE)
			fputs("On the command line alone.\n", file);
		else if (spec->scope == OPTION_OF_RUN)
			fputs("In job files, in\n.Li [global]\nalone.\n", file);
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
		write_body(file, spec);
		write_aliases(file, spec, "Cm ");
	}
	fputs(".El\n", file);
}
