/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the jobs' progress while they update it: the figures of a line need not be of one moment.
 */
#include "cli/bench/eta.h"

#include <stdio.h>

#include "base/clock.h"

struct line {
	const char *phase; /* of the job with the smallest share; NULL: no job is in a phase */
	unsigned n;	   /* jobs in a phase */
	double share;
	double seconds_left;
	double bytes_per_s[2], ios_per_s; /* of jobs that measure */
	double other_per_s;		  /* bytes, of the others */
};

static double seconds_since(uint64_t ns)
{
	uint64_t now = clock_ns();

	return ns && now > ns ? (double)(now - ns) / 1e9 : 0;
}

static void add_rates(struct line *line, struct job_live *live, double phase_seconds)
{
	double seconds = seconds_since(atomic_load(&live->measuring_since_ns));

	if (atomic_load(&live->phase) != JOB_MEASURING) {
		if (phase_seconds > 0)
			line->other_per_s += (double)atomic_load(&live->progress.bytes) /
					     phase_seconds;
		return;
	}
	for (int d = NVS_READ; d <= NVS_WRITE && seconds > 0; d++) {
		line->bytes_per_s[d] += (double)atomic_load(&live->bytes[d]) / seconds;
		line->ios_per_s += (double)atomic_load(&live->ios[d]) / seconds;
	}
}

static void add_job(struct line *line, struct job_live *live)
{
	const char *phase = atomic_load(&live->progress.phase);
	uint64_t done = atomic_load(&live->progress.done);
	uint64_t total = atomic_load(&live->progress.total);
	double seconds = seconds_since(atomic_load(&live->progress.since_ns));
	double share, left;

	if (!phase)
		return;
	share = total && done < total ? (double)done / (double)total : 1;
	left = share > 0.01 ? seconds / share * (1 - share) : -1;
	line->n++;
	if (!line->phase || share < line->share) {
		line->phase = phase;
		line->share = share;
		line->seconds_left = left;
	}
	add_rates(line, live, seconds);
}

void eta_draw(struct job_live *const *jobs, unsigned n)
{
	struct line line = {0};
	char label[32], rates[96];

	for (unsigned i = 0; i < n; i++)
		add_job(&line, jobs[i]);
	if (!line.phase)
		return;
	if (line.n > 1)
		snprintf(label, sizeof(label), "%s (%u)", line.phase, line.n);
	else
		snprintf(label, sizeof(label), "%s", line.phase);
	if (line.ios_per_s > 0)
		snprintf(rates, sizeof(rates), "%.2f GB/s read, %.2f GB/s written, %.0f IOPS",
			 line.bytes_per_s[NVS_READ] / 1e9, line.bytes_per_s[NVS_WRITE] / 1e9,
			 line.ios_per_s);
	else
		snprintf(rates, sizeof(rates), "%.2f GB/s", line.other_per_s / 1e9);
	progress_draw(label, line.share, rates, line.seconds_left);
}
