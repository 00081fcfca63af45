/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writers of a command's options for the manual page, the completion and Markdown.
 */
#ifndef OPTION_DOCS_H
#define OPTION_DOCS_H

#include <stdio.h>

#include "cli/options/options.h"

/* All commands, NULL-terminated. */
extern const struct command_spec *const documented_commands[];

/* mdoc */
void manual_synopsis(FILE *file, const struct command_spec *command);
void manual_options(FILE *file, const struct command_spec *command);
/* Keys that only job files have. */
void manual_file_keys(FILE *file, const struct command_spec *command);

/* Branches of a case over "command,--option" that set the kind of its value. */
void completion_values(FILE *file, const struct command_spec *command);
void completion_commands(FILE *file, const struct command_spec *command);
/* A branch of a case over the command that sets its options. */
void completion_options(FILE *file, const struct command_spec *command);

/* Markdown: the keys of job files, and a row of the README's table. */
void table_of_keys(FILE *file, const struct command_spec *command);
void table_of_commands(FILE *file, const struct command_spec *command);

#endif
