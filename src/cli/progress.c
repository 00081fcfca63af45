/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress bar. It writes to standard error alone, only if that is a terminal, and so seldom
 * that it takes no part in what is measured.
 */
#include "progress.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH   30
#define INTERVAL_NS 100000000u

static struct {
	const char *phase;
	uint64_t total, started_ns, drawn_ns;
	bool active;
} bar;
static atomic_bool on_line;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

const char *progress_erase(void)
{
	return atomic_exchange(&on_line, false) ? "\r\033[K" : "";
}

void progress_begin(const char *phase, uint64_t total)
{
	bar.active = isatty(STDERR_FILENO) == 1;
	bar.phase = phase;
	bar.total = total;
	bar.started_ns = now_ns();
	bar.drawn_ns = 0;
}

void progress_update(uint64_t done, uint64_t bytes)
{
	static const char filled[] = "##############################";
	static const char empty[] = "..............................";
	uint64_t now;
	double share, seconds;
	int width;

	if (!bar.active)
		return;
	now = now_ns();
	if (now - bar.drawn_ns < INTERVAL_NS)
		return;
	bar.drawn_ns = now;
	share = bar.total && done < bar.total ? (double)done / (double)bar.total : 1;
	seconds = (double)(now - bar.started_ns) / 1e9;
	width = (int)(share * BAR_WIDTH);
	fprintf(stderr, "\r%-10s [%.*s%.*s] %3.0f %%  %6.2f GB/s", bar.phase, width, filled,
		BAR_WIDTH - width, empty, share * 100,
		seconds > 0 ? (double)bytes / seconds / 1e9 : 0);
	if (share > 0.01)
		fprintf(stderr, "  %.0f s left", seconds / share * (1 - share));
	fputs("\033[K", stderr);
	fflush(stderr);
	atomic_store(&on_line, true);
}

void progress_end(void)
{
	fputs(progress_erase(), stderr);
	fflush(stderr);
	bar.active = false;
}
