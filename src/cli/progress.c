/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress bar. It writes to standard error alone, only if that is a terminal, and so seldom
 * that it takes no part in what is measured.
 */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "clock.h"

#define BAR_WIDTH   30
#define INTERVAL_NS 100000000u

static struct {
	const char *phase;
	uint64_t total, started_ns, drawn_ns;
	bool active;
} bar;
static struct progress *told;
static atomic_bool here;
static atomic_bool *on_line = &here;

const char *progress_erase(void)
{
	return atomic_exchange(on_line, false) ? "\r\033[K" : "";
}

void progress_share(atomic_bool *shared)
{
	on_line = shared ? shared : &here;
}

void progress_tell(struct progress *progress)
{
	told = progress;
}

static void tell_begin(const char *phase, uint64_t total)
{
	atomic_store(&told->phase, NULL);
	atomic_store(&told->since_ns, now_ns());
	atomic_store(&told->total, total);
	atomic_store(&told->done, 0);
	atomic_store(&told->bytes, 0);
	atomic_store(&told->phase, phase);
}

void progress_begin(const char *phase, uint64_t total)
{
	if (told) {
		tell_begin(phase, total);
		return;
	}
	bar.active = isatty(STDERR_FILENO) == 1;
	bar.phase = phase;
	bar.total = total;
	bar.started_ns = now_ns();
	bar.drawn_ns = 0;
}

void progress_draw(const char *phase, double share, const char *rates, double seconds_left)
{
	static const char filled[] = "##############################";
	static const char empty[] = "..............................";
	int width = (int)(share * BAR_WIDTH);

	fprintf(stderr, "\r%-10s [%.*s%.*s] %3.0f %%  %s", phase, width, filled, BAR_WIDTH - width,
		empty, share * 100, rates);
	if (seconds_left >= 0)
		fprintf(stderr, "  %.0f s left", seconds_left);
	fputs("\033[K", stderr);
	fflush(stderr);
	atomic_store(on_line, true);
}

void progress_update(uint64_t done, uint64_t bytes)
{
	uint64_t now;
	double share, seconds;
	char rates[32];

	if (told) {
		atomic_store(&told->bytes, bytes);
		atomic_store(&told->done, done);
		return;
	}
	if (!bar.active)
		return;
	now = now_ns();
	if (now - bar.drawn_ns < INTERVAL_NS)
		return;
	bar.drawn_ns = now;
	share = bar.total && done < bar.total ? (double)done / (double)bar.total : 1;
	seconds = (double)(now - bar.started_ns) / 1e9;
	snprintf(rates, sizeof(rates), "%6.2f GB/s",
		 seconds > 0 ? (double)bytes / seconds / 1e9 : 0);
	progress_draw(bar.phase, share, rates, share > 0.01 ? seconds / share * (1 - share) : -1);
}

void progress_end(void)
{
	if (told) {
		atomic_store(&told->phase, NULL);
		return;
	}
	fputs(progress_erase(), stderr);
	fflush(stderr);
	bar.active = false;
}
