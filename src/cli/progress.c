/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws on standard error only, ten times a second at most, and never wider than the terminal: a
 * line that wraps can't be erased.
 */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"

#define BAR_MIN		5
#define BAR_MAX		30
#define INTERVAL_NS	100000000u
#define COLUMNS_UNKNOWN 80
#define LINE_MAX_BYTES	256

static struct {
	const char *phase;
	uint64_t total, started_ns, drawn_ns;
	bool active;
} phase_here;
static struct progress *stored_in;
static atomic_bool on_line_here;
static atomic_bool *on_line = &on_line_here;

const char *progress_erase(void)
{
	return atomic_exchange(on_line, false) ? "\r\033[K" : "";
}

void progress_share(atomic_bool *shared)
{
	on_line = shared ? shared : &on_line_here;
}

void progress_store_in(struct progress *progress)
{
	stored_in = progress;
}

static void store_begin(const char *phase, uint64_t total)
{
	atomic_store(&stored_in->phase, NULL);
	atomic_store(&stored_in->since_ns, clock_ns());
	atomic_store(&stored_in->total, total);
	atomic_store(&stored_in->done, 0);
	atomic_store(&stored_in->bytes, 0);
	atomic_store(&stored_in->phase, phase);
}

void progress_begin(const char *phase, uint64_t total)
{
	if (stored_in) {
		store_begin(phase, total);
		return;
	}
	phase_here.active = isatty(STDERR_FILENO) == 1;
	phase_here.phase = phase;
	phase_here.total = total;
	phase_here.started_ns = clock_ns();
	phase_here.drawn_ns = 0;
}

/* Asked for at each draw, since the user may resize the terminal. The last column stays empty:
 * some terminals wrap when it is written. */
static size_t line_columns(void)
{
	struct winsize size;
	size_t columns = COLUMNS_UNKNOWN;

	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		columns = size.ws_col;
	return columns < LINE_MAX_BYTES ? columns - 1 : LINE_MAX_BYTES - 1;
}

/* What stands behind the bar; rates that don't fit are left out from the end. */
static void describe(char *text, size_t columns, double share, const char *rates,
		     double seconds_left)
{
	size_t shown = strlen(rates);
	char left[32] = "";

	if (seconds_left >= 0)
		snprintf(left, sizeof(left), ", %.0f s left", seconds_left);
	while (snprintf(text, LINE_MAX_BYTES, " %3.0f %%%s%.*s%s", share * 100, shown ? "  " : "",
			(int)shown, rates, left) > (int)columns &&
	       shown)
		do
			shown--;
		while (shown && rates[shown] != ',');
}

void progress_draw(const char *phase, double share, const char *rates, double seconds_left)
{
	static const char filled[] = "##############################";
	static const char empty[] = "..............................";
	size_t columns = line_columns(), named = strlen(phase);
	char behind[LINE_MAX_BYTES], line[3 * LINE_MAX_BYTES], bar[2 * BAR_MAX + 4] = "";
	int width, done;

	named = named < columns ? named : columns;
	describe(behind, columns - named, share, rates, seconds_left);
	width = (int)columns - (int)(named + strlen(behind) + strlen(" []"));
	width = width < BAR_MAX ? width : BAR_MAX;
	done = (int)(share * width);
	if (width >= BAR_MIN)
		snprintf(bar, sizeof(bar), " [%.*s%.*s]", done, filled, width - done, empty);
	snprintf(line, sizeof(line), "%s%s%s", phase, bar, behind);
	fprintf(stderr, "\r%.*s\033[K", (int)columns, line);
	fflush(stderr);
	atomic_store(on_line, true);
}

void progress_update(uint64_t done, uint64_t bytes)
{
	uint64_t now;
	double share, seconds;
	char rates[32];

	if (stored_in) {
		atomic_store(&stored_in->bytes, bytes);
		atomic_store(&stored_in->done, done);
		return;
	}
	if (!phase_here.active)
		return;
	now = clock_ns();
	if (now - phase_here.drawn_ns < INTERVAL_NS)
		return;
	phase_here.drawn_ns = now;
	share = phase_here.total && done < phase_here.total
			? (double)done / (double)phase_here.total
			: 1;
	seconds = (double)(now - phase_here.started_ns) / 1e9;
	snprintf(rates, sizeof(rates), "%.2f GB/s",
		 seconds > 0 ? (double)bytes / seconds / 1e9 : 0);
	progress_draw(phase_here.phase, share, rates,
		      share > 0.01 ? seconds / share * (1 - share) : -1);
}

void progress_end(void)
{
	if (stored_in) {
		atomic_store(&stored_in->phase, NULL);
		return;
	}
	fputs(progress_erase(), stderr);
	fflush(stderr);
	phase_here.active = false;
}
