/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands, and what they share. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
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
void say_log(void *arg, enum nvs_log_level level, const char *text);

/* Where a command writes its results: a file, or standard output for NULL. Opening does not
 * truncate the file, so a run that fails keeps the results of an earlier one. No link that another
 * user could have planted is followed to it. output_close reports a failed write. */
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
/* Prints on standard error the command that draws a page from the results in a file; nothing for a
 * path that is NULL or no regular file. */
void say_page(const char *path);

/*
 * ---- stop.c ----
 *
 * Requests to end: a signal or the parent process sets a flag, and the run ends where it next
 * checks it.
 */

/* The result of stop_signal() when another job of the stage failed. */
#define STOP_OTHER_FAILED (-1)

/* From now on SIGINT, SIGTERM and SIGHUP set the flag; the second ends the process. Unless
 * `waiting` is NULL, they are blocked, and it is the mask of before. */
void stop_catch_signals(sigset_t *waiting);
/* In a forked process: *requested counts as a signal, and the parent's end as SIGTERM. Returns
 * false if the parent has already ended. */
bool stop_follow(const atomic_int *requested, int parent_pid);
/* The signal, or *requested; 0: no request to end. */
int stop_signal(void);

/*
 * ---- output.c: progress ----
 *
 * The line of progress: a phase's bar, rates and time left, on standard error if that is a
 * terminal. The process of a job stores its progress in shared memory, and its parent draws it.
 */

struct progress {
	_Atomic(const char *) phase; /* a constant; NULL: between phases */
	atomic_ullong since_ns, total, done, bytes;
};

/* Begins a phase of `total` units (bytes, or time); its name must stay valid. */
void progress_begin(const char *phase, uint64_t total);
/* `done` of the total; `bytes` moved so far in this phase. Draws at most ten times a second. */
void progress_update(uint64_t done, uint64_t bytes);
void progress_end(void);

/* From now on phases are stored in *progress instead of drawn. */
void progress_store_in(struct progress *progress);
/* Processes that share a terminal note in *on_line that the line is drawn. NULL: this one alone. */
void progress_share(atomic_bool *on_line);

/* Of one moment, more or less: it may be read while it is updated. */
struct progress_now {
	const char *phase; /* NULL: between phases */
	double share, bytes_per_s;
	double seconds_left; /* below 0: unknown */
};
struct progress_now progress_read(const struct progress *progress);
/* Draws the line; of `rates`, separated by commas, those for which the terminal has room. */
void progress_draw(const char *phase, double share, const char *rates, double seconds_left);
/* The escape sequence that erases the line if it is drawn, else "". Any thread. */
const char *progress_erase(void);

#endif
