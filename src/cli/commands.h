/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands, and what they share: exit statuses, messages on standard error, and an output
 * whose writing is checked.
 */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <stdio.h>

#include "base/text.h"
#include "nvswap.h"

/* Exit statuses beside 0. After a signal: 128 + its number. */
enum { STATUS_FAILED = 1, STATUS_USAGE = 2 };

/* argv[0] is the subcommand's name. They return the exit status. */
int cmd_bench(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_store(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_compare(int argc, char **argv);

/* Prints "nvswap: ..." on standard error, after erasing the line of progress. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says why a call ends, and is its code or status. */
#define REFUSE(code, ...) (say(__VA_ARGS__), (code))
/* An nvs_log_fn that prints errors and warnings. */
void say_log(void *arg, enum nvs_log_level level, const char *text);

/*
 * Where a command writes its results: a file, or standard output for NULL. Opening does not
 * truncate the file, so a run that fails keeps the results of an earlier one. No link that another
 * user could have planted is followed to it. output_close reports it and returns STATUS_FAILED if
 * not everything was written.
 */
struct output {
	const char *path;
	FILE *file;
	char *buffer;
};
int output_open(struct output *output, const char *path);
/* Truncates the file; call it before the first write. */
int output_begin(struct output *output);
int output_close(struct output *output);
/* Whether both name one file; of those that are not there, by their names. NULL names none. */
bool is_same_file(const char *a, const char *b);
/*
 * Prints on standard error the command that draws a page from the results in a file; nothing for a
 * path that is NULL or no regular file.
 */
void say_page(const char *path);

#endif
