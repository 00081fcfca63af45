/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of --help, from the same table that the parser goes by.
 */
#include <string.h>

#include "commands.h"
#include "options.h"

/* "--name ARGUMENT", for the first column of the help. */
static void heading(const struct option_spec *spec, char *text, size_t nbytes)
{
	size_t length;

	snprintf(text, nbytes, "--%s%s%s", spec->name, spec->argument ? " " : "",
		 spec->argument ? spec->argument : "");
	if (spec->type != OPTION_CHOICE)
		return;
	length = strlen(spec->name) + 2;
	for (unsigned i = 0; spec->choices[i]; i++)
		length += (size_t)snprintf(text + length, nbytes - length, "%c%s", i ? '|' : ' ',
					   spec->choices[i]);
}

static void help_option(FILE *file, const struct option_spec *spec)
{
	char text[128];
	const char *help = spec->help;

	heading(spec, text, sizeof(text));
	if (strlen(text) > 22)
		fprintf(file, "  %s\n%-26s", text, "");
	else
		fprintf(file, "  %-22s  ", text);
	for (;;) {
		size_t length = strcspn(help, "\n");

		fprintf(file, "%.*s\n", (int)length, help);
		if (!help[length])
			break;
		fprintf(file, "%-26s", "");
		help += length + 1;
	}
}

int options_help(const struct command_spec *command)
{
	struct output output;

	if (output_open(&output, NULL))
		return STATUS_FAILED;
	fprintf(output.file, "usage: nvswap %s [OPTION]...\n\n%s\n\n", command->name,
		command->summary);
	for (unsigned i = 0; i < command->noptions; i++)
		help_option(output.file, &command->options[i]);
	fprintf(output.file, "  %-22s  this text\n", "-h, --help");
	if (command->notes)
		fprintf(output.file, "\n%s\n", command->notes);
	return output_close(&output);
}
