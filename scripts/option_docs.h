/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a command's options outside of the command, each in the form of its reader.
 */
#ifndef OPTION_DOCS_H
#define OPTION_DOCS_H

#include <stdio.h>

#include "cli/options.h"

/* The commands that have options, up to a NULL. */
extern const struct command_spec *const documented_commands[];

/* mdoc, for the manual page. */
void manual_synopsis(FILE *file, const struct command_spec *command);
void manual_options(FILE *file, const struct command_spec *command);
/* What stands in job files alone. */
void manual_file_keys(FILE *file, const struct command_spec *command);

/* The branches of a case over "command,--option" that set what its value may be. */
void completion_values(FILE *file, const struct command_spec *command);
void completion_commands(FILE *file, const struct command_spec *command);
/* A branch of a case over the command that sets its options. */
void completion_options(FILE *file, const struct command_spec *command);

/* Markdown: the keys of job files, and a row of the README's table. */
void table_of_keys(FILE *file, const struct command_spec *command);
void table_of_commands(FILE *file, const struct command_spec *command);

#endif
