/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays histories in child processes, so a crash or a hang is a failure like any other, and reduces
 * one that fails: leaves out operations, first half of them and finally single ones, as long as the
 * rest still fails.
 */
#include "support/history/history.h"
#include "support/turns.h"
#include "swap/swap_fixture.h"

#include <signal.h>
#include <stdatomic.h>

#define HANG_S		  120u /* an operation that takes longer counts as a hang */
#define HISTORIES_A_CHILD 16u
#define RUNS_TO_CUT	  1500u
#define RUNS_OF_A_HANG	  500u /* what a run counts as that takes HANG_S */

/* Memory that a child shares with its parent. */
struct shared {
	_Atomic uint64_t seed; /* of the current history */
	_Atomic uint32_t at;   /* number of the current operation */
	struct history_counts counts;
};
static struct shared *shared;
static bool hung; /* the child that ended last */

/* ---- The child ---- */

static bool aloud;

void history_log(const char *format, ...)
{
	va_list args;

	shared->counts.operations++;
	if (!aloud)
		return;
	printf("%6" PRIu32 "  ", shared->at);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	fflush(stdout);
}

void history_log_more(const char *format, ...)
{
	va_list args;

	if (!aloud)
		return;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	fflush(stdout);
}

void history_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	printf("\n%s:%d: ", file, line);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
	_exit(EXIT_FAILURE);
}

struct history_counts *history_counts(void)
{
	return &shared->counts;
}

static void play(const struct history *history, const char *directory)
{
	bool real = history->model->real;
	uint64_t random;
	void *world;

	shared->seed = history->seed;
	shared->at = 0;
	alarm(HANG_S);
	if (!real)
		turns_begin(history->seed);
	world = history->model->begin(history->model, directory, history->seed);
	for (uint32_t i = 0; i < history->length; i++) {
		if (history->left_out && history->left_out[i])
			continue;
		shared->at = i;
		alarm(HANG_S);
		random = history->seed ^ ((uint64_t)i << 32 | i);
		history->model->operation(world, next_random(&random));
	}
	shared->at = history->length;
	alarm(HANG_S);
	history->model->end(world);
	if (!real)
		turns_end();
	shared->counts.histories++;
	alarm(0);
}

/* ---- The parent ---- */

/* Returns whether the history passed; its log goes to `output`; -1: standard output. */
static bool play_in_child(const struct history *first, uint32_t n, bool print, int output)
{
	struct history history = *first;
	char *directory = place_make(first->model->real ? PLACE_EXT4 : PLACE_TMPFS);
	int status;
	pid_t pid;

	if (!directory)
		directory = place_make(PLACE_DISK);
	assert_non_null(directory);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		aloud = print;
		if (output >= 0 &&
		    (ftruncate(output, 0) || lseek(output, 0, SEEK_SET) ||
		     dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0))
			_exit(EXIT_FAILURE);
		for (uint32_t i = 0; i < n; i++, history.seed++)
			play(&history, directory);
		fflush(stdout);
		/* Not _exit: leak detection runs at exit. */
		exit(EXIT_SUCCESS);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	place_leave(directory);
	hung = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
	if (WIFSIGNALED(status))
		dprintf(output < 0 ? STDOUT_FILENO : output, "\n%s\n",
			hung ? "it hangs" : strsignal(WTERMSIG(status)));
	return WIFEXITED(status) && WEXITSTATUS(status) == EXIT_SUCCESS;
}

uint32_t history_remaining(const struct history *history)
{
	uint32_t n = history->length;

	for (uint32_t i = 0; history->left_out && i < history->length; i++)
		n -= history->left_out[i];
	return n;
}

/* A failing history while it is reduced. */
struct cutting {
	struct history history;
	bool *left_out;
	int output;
	unsigned runs;
};

static bool fails(struct cutting *cutting)
{
	bool passed = play_in_child(&cutting->history, 1, false, cutting->output);

	cutting->runs += hung ? RUNS_OF_A_HANG : 1;
	return !passed;
}

/* Leaves out the next `n` remaining operations from `from`, if the history still fails then. */
static bool cut(struct cutting *cutting, uint32_t from, uint32_t n)
{
	uint32_t length = cutting->history.length;
	bool *before = malloc(length), changed = false;

	assert_non_null(before);
	memcpy(before, cutting->left_out, length);
	for (uint32_t i = from; i < length && n; i++)
		if (!cutting->left_out[i]) {
			cutting->left_out[i] = changed = true;
			n--;
		}
	if (changed && !fails(cutting)) {
		memcpy(cutting->left_out, before, length);
		changed = false;
	}
	free(before);
	return changed;
}

static void read_output(int output, char *text, size_t text_bytes)
{
	ssize_t n = pread(output, text, text_bytes - 1, 0);

	text[n < 0 ? 0 : n] = 0;
}

static void shrink(const struct history *first, int output, struct history *found, char *text,
		   size_t text_bytes)
{
	static bool *left_out;
	static char what[32768];
	struct cutting cutting = {.history = *first, .output = output};
	char numbers[4096];
	size_t used;
	bool seen;

	free(left_out);
	left_out = calloc(first->length + 1, sizeof(*left_out));
	assert_non_null(left_out);
	if (first->left_out)
		memcpy(left_out, first->left_out, first->length);
	cutting.left_out = left_out;
	cutting.history.left_out = left_out;
	cutting.history.seed = shared->seed;
	/* If the failure does not recur, the first run's output is all there is. */
	read_output(output, text, text_bytes);
	used = strlen(text);
	*found = cutting.history;
	if (!fails(&cutting)) {
		snprintf(text + used, text_bytes - used,
			 "\n%s, seed %" PRIu64 ", at operation %" PRIu32 " of %" PRIu32
			 "; it passed when repeated\n",
			 first->model->name, cutting.history.seed, shared->at, first->length);
		return;
	}
	cut(&cutting, shared->at + 1, first->length);
	for (uint32_t n = history_remaining(&cutting.history) / 2;
	     n && cutting.runs < RUNS_TO_CUT;) {
		bool any = false;

		for (uint32_t i = 0; i < first->length && cutting.runs < RUNS_TO_CUT; i++)
			if (!left_out[i])
				any |= cut(&cutting, i, n);
		/* Leaving out one operation can make others unnecessary, so try again. */
		if (n > 1 || !any)
			n /= 2;
	}
	history_format(&cutting.history, numbers, sizeof(numbers));
	seen = !play_in_child(&cutting.history, 1, true, output);
	read_output(output, what, sizeof(what));
	snprintf(text, text_bytes,
		 "%s, seed %" PRIu64 ": %" PRIu32 " operations of %" PRIu32
		 " are left%s:\n%s\nAgain: build/tests/system/test_histories %s %" PRIu64
		 " %" PRIu32 " %s\n",
		 first->model->name, cutting.history.seed, history_remaining(&cutting.history),
		 first->length, seen ? "" : " (and passed when repeated)", what, first->model->name,
		 cutting.history.seed, first->length, numbers);
}

static void share(void)
{
	if (!shared)
		shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(shared != MAP_FAILED);
}

void history_forget_counts(void)
{
	share();
	shared->counts = (struct history_counts){0};
}

bool history_play_aloud(const struct history *history)
{
	share();
	return play_in_child(history, 1, true, -1);
}

bool history_play_into(const struct history *history, char *text, size_t text_bytes)
{
	int output = memfd_create("output", MFD_CLOEXEC);
	bool well;

	assert_true(output >= 0);
	share();
	well = play_in_child(history, 1, true, output);
	read_output(output, text, text_bytes);
	close(output);
	return well;
}

bool history_play(const struct history *first, uint32_t n, struct history *found, char *text,
		  size_t text_bytes)
{
	int output = memfd_create("output", MFD_CLOEXEC);
	struct history next = *first;
	bool well = true;

	assert_true(output >= 0);
	share();
	while (n && well) {
		uint32_t some = n < HISTORIES_A_CHILD ? n : HISTORIES_A_CHILD;

		well = play_in_child(&next, some, false, output);
		if (!well)
			shrink(&next, output, found, text, text_bytes);
		next.seed += some;
		n -= some;
	}
	close(output);
	return well;
}

/* ---- Numbers ---- */

void history_format(const struct history *history, char *text, size_t text_bytes)
{
	size_t used = 0;

	text[0] = 0;
	for (uint32_t i = 0; i < history->length && used + 32 < text_bytes; i++) {
		uint32_t last = i;

		if (history->left_out && history->left_out[i])
			continue;
		while (last + 1 < history->length &&
		       !(history->left_out && history->left_out[last + 1]))
			last++;
		used += (size_t)snprintf(text + used, text_bytes - used,
					 used ? ",%" PRIu32 : "%" PRIu32, i);
		if (last > i)
			used += (size_t)snprintf(text + used, text_bytes - used, "-%" PRIu32, last);
		i = last;
	}
}

bool history_parse(const char *text, uint32_t length, bool *left_out)
{
	memset(left_out, true, length);
	while (*text) {
		char *end;
		unsigned long from = strtoul(text, &end, 10), to = from;

		if (end == text)
			return false;
		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		if (to < from || to >= length || (*end && *end != ','))
			return false;
		memset(left_out + from, false, to - from + 1);
		text = *end ? end + 1 : end;
	}
	return true;
}
