/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Draws on standard error only, ten times a second at most, and never wider than the terminal: a
 * line that wraps can't be erased.
 */
#include "cli/commands.h"

#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/numbers.h"

#define BAR_MIN		5
#define BAR_MAX		30
#define INTERVAL_NS	100000000u
#define COLUMNS_UNKNOWN 80
#define LINE_MAX_BYTES	256

static struct progress progress_here, *stored_in = &progress_here;
static bool draws_here;
static uint64_t drawn_ns;
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

void progress_begin(const char *phase, uint64_t total)
{
	atomic_store(&stored_in->phase, NULL);
	atomic_store(&stored_in->since_ns, clock_ns());
	atomic_store(&stored_in->total, total);
	atomic_store(&stored_in->done, 0);
	atomic_store(&stored_in->bytes, 0);
	atomic_store(&stored_in->phase, phase);
	draws_here = stored_in == &progress_here && isatty(STDERR_FILENO) == 1;
	drawn_ns = 0;
}

struct progress_now progress_read(const struct progress *progress)
{
	uint64_t total = atomic_load(&progress->total), done = atomic_load(&progress->done);
	uint64_t since = atomic_load(&progress->since_ns), clock = clock_ns();
	double seconds = since && clock > since ? (double)(clock - since) / 1e9 : 0;
	struct progress_now now = {.phase = atomic_load(&progress->phase), .seconds_left = -1};

	now.share = total && done < total ? (double)done / (double)total : 1;
	if (now.share > 0.01)
		now.seconds_left = seconds / now.share * (1 - now.share);
	if (seconds > 0)
		now.bytes_per_s = (double)atomic_load(&progress->bytes) / seconds;
	return now;
}

void progress_draw(const char *phase, double share, const char *rates, double seconds_left)
{
	static const char filled[] = "##############################";
	static const char empty[] = "..............................";
	char left[32] = "", behind[LINE_MAX_BYTES], line[3 * LINE_MAX_BYTES],
	     bar[2 * BAR_MAX + 4] = "";
	size_t columns = COLUMNS_UNKNOWN, named = strlen(phase), shown = strlen(rates);
	struct winsize size;
	int width, done;

	/* Asked for at each draw, since the user may resize the terminal. The last column stays
	 * empty: some terminals wrap when it is written. */
	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		columns = size.ws_col;
	columns = min_u64(columns, LINE_MAX_BYTES) - 1;
	named = min_u64(named, columns);
	if (seconds_left >= 0)
		snprintf(left, sizeof(left), ", %.0f s left", seconds_left);
	/* Rates that don't fit are left out from the end. */
	while (snprintf(behind, sizeof(behind), " %3.0f %%%s%.*s%s", share * 100, shown ? "  " : "",
			(int)shown, rates, left) > (int)(columns - named) &&
	       shown)
		do
			shown--;
		while (shown && rates[shown] != ',');
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
	struct progress_now now;
	char rates[32];

	atomic_store(&stored_in->bytes, bytes);
	atomic_store(&stored_in->done, done);
	if (!draws_here || clock_ns() - drawn_ns < INTERVAL_NS)
		return;
	drawn_ns = clock_ns();
	now = progress_read(stored_in);
	snprintf(rates, sizeof(rates), "%.2f GB/s", now.bytes_per_s / 1e9);
	progress_draw(now.phase, now.share, rates, now.seconds_left);
}

void progress_end(void)
{
	atomic_store(&stored_in->phase, NULL);
	draws_here = false;
	if (stored_in == &progress_here)
		fputs(progress_erase(), stderr);
}
