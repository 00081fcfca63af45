/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands, and what they have in common: exit statuses, speaking on standard error, and
 * an output that is known to have been written. Relies on the public header alone.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdio.h>

#include "nvswap.h"

/* Exit statuses beside 0. A command ended by a signal exits with 128 + its number. */
enum { STATUS_FAILED = 1, STATUS_USAGE = 2 };

/* argv[0] is the name of the subcommand. They return the exit status. */
int cmd_bench(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_tune(int argc, char **argv);

/* "nvswap: ..." and a newline on standard error, after taking a progress bar off the line. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* An nvs_log_fn that says errors and warnings. */
void say_log(void *arg, enum nvs_log_level level, const char *text);

/*
 * Where a command writes its results: the file, or standard output for NULL. Opening does not
 * empty the file, so that a run that fails leaves the results of an earlier one; output_close
 * says so, and returns STATUS_FAILED, if not everything could be written.
 */
struct output {
	const char *path;
	FILE *file;
};
int output_open(struct output *output, const char *path);
/* Empties the file; to be called before the first write. */
int output_begin(struct output *output);
int output_close(struct output *output);

#endif
