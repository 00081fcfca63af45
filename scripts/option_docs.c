/* SPDX-License-Identifier: Apache-2.0 */
/*
 * option-docs TEMPLATE: fills a template from the tables of options and writes it to standard
 * output. A line "@WHAT COMMAND@" is replaced by the text WHAT of that command, or of all commands
 * if it names none. In Markdown the line is "<!-- @WHAT COMMAND@ -->"; it is kept, and the text
 * between it and "<!-- @end@ -->" is replaced.
 */
#include "option_docs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/compare/compare.h"
#include "cli/info/info.h"
#include "cli/jobs/jobs.h"
#include "cli/store/store.h"
#include "cli/tune/tune.h"

const struct command_spec *const documented_commands[] = {&bench_command,
							  &compare_command,
							  &replay_command,
							  &tune_command,
							  &info_command,
							  &store_command,
							  NULL};

static const struct {
	const char *what;
	void (*write)(FILE *file, const struct command_spec *command);
} texts[] = {
	{"manual-synopsis", manual_synopsis},
	{"manual-options", manual_options},
	{"manual-file-keys", manual_file_keys},
	{"completion-values", completion_values},
	{"completion-commands", completion_commands},
	{"completion-options", completion_options},
	{"table-of-keys", table_of_keys},
	{"table-of-commands", table_of_commands},
};

static const char end_of_text[] = "<!-- @end@ -->\n";

/* Writes the text for "WHAT COMMAND@"; false if there is no such text. */
static bool write_text(const char *placeholder)
{
	bool found = false;

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		size_t length = strlen(texts[i].what);

		if (strncmp(placeholder, texts[i].what, length) != 0 ||
		    !strchr(" @", placeholder[length]))
			continue;
		for (unsigned j = 0; documented_commands[j]; j++) {
			const char *name = documented_commands[j]->name;
			size_t rest = strlen(name);

			if (placeholder[length] == ' ' &&
			    (strncmp(placeholder + length + 1, name, rest) != 0 ||
			     placeholder[length + 1 + rest] != '@'))
				continue;
			texts[i].write(stdout, documented_commands[j]);
			found = true;
		}
	}
	return found;
}

static int fill(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[4096];
	bool skipping = false, comment;

	if (!file)
		return -errno;
	while (fgets(line, sizeof(line), file)) {
		comment = !strncmp(line, "<!-- @", 6);
		if (skipping && strcmp(line, end_of_text) != 0)
			continue;
		skipping = false;
		if (comment || *line != '@')
			fputs(line, stdout);
		if ((!comment && *line != '@') || !strcmp(line, end_of_text))
			continue;
		if (!write_text(line + (comment ? 6 : 1))) {
			fprintf(stderr, "%s: there is no text for %s", path, line);
			fclose(file);
			return -EINVAL;
		}
		skipping = comment;
	}
	fclose(file);
	return skipping ? -EINVAL : 0;
}

int main(int argc, char **argv)
{
	int rc = argc == 2 ? fill(argv[1]) : -EINVAL;

	if (!rc && (fflush(stdout) || ferror(stdout)))
		rc = -EIO;
	if (rc)
		fprintf(stderr, "option-docs %s: %s\n", argc == 2 ? argv[1] : "TEMPLATE",
			strerror(-rc));
	return rc ? EXIT_FAILURE : EXIT_SUCCESS;
}
