/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap and fio in two columns with their ratio, in the units of fio's text.
 */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "cli/report/text.h"

#define MIB 1048576.0

static void put_line(FILE *file, const char *what, const char *unit, double ours, double theirs,
		     double ratio)
{
	fprintf(file, "  %-15s %-8s %12.1f %12.1f", what, unit, ours, theirs);
	if (ratio > 0)
		fprintf(file, " %8.2f\n", ratio);
	else
		fprintf(file, " %8s\n", "-");
}

static double over(double ours, double theirs)
{
	return theirs > 0 ? ours / theirs : 0;
}

static void put_direction(FILE *file, const struct fio_row *row, enum nvs_direction d)
{
	static const char *const names[][4] = {
		[NVS_READ] = {"read bw", "read iops", "read clat p50", "read clat p99"},
		[NVS_WRITE] = {"write bw", "write iops", "write clat p50", "write clat p99"}};
	const struct job_figures *ours = &row->ours, *theirs = &row->theirs;

	if (!ours->bytes[d] && !theirs->bytes[d])
		return;
	put_line(file, names[d][0], "MiB/s", ours->bytes_per_s[d] / MIB,
		 theirs->bytes_per_s[d] / MIB, over(ours->bytes_per_s[d], theirs->bytes_per_s[d]));
	put_line(file, names[d][1], "", ours->iops[d], theirs->iops[d],
		 over(ours->iops[d], theirs->iops[d]));
	put_line(file, names[d][2], "usec", ours->p50_ns[d] / 1e3, theirs->p50_ns[d] / 1e3,
		 over(ours->p50_ns[d], theirs->p50_ns[d]));
	put_line(file, names[d][3], "usec", ours->p99_ns[d] / 1e3, theirs->p99_ns[d] / 1e3,
		 over(ours->p99_ns[d], theirs->p99_ns[d]));
}

void report_fio_text(FILE *file, const struct fio_row *rows, unsigned nrows)
{
	if (!nrows)
		return;
	fprintf(file, "\nCompared with fio in turn, %u round%s; medians, nvswap over fio:\n",
		rows->rounds, plural(rows->rounds));
	for (unsigned i = 0; i < nrows; i++) {
		const struct fio_row *row = &rows[i];
		char job[64];

		fprintf(file, "%-26s %12s %12s %8s\n",
			visible_text(row->job, strlen(row->job), job, sizeof(job)), "nvswap", "fio",
			"ratio");
		put_direction(file, row, NVS_READ);
		put_direction(file, row, NVS_WRITE);
		fprintf(file, "  %-50s %8.2f\n", "bw, both ways, median of the rounds' ratios",
			row->ratio);
		put_line(file, "cpu per GiB", "ms", row->ours.cpu_ms_per_gib,
			 row->theirs.cpu_ms_per_gib,
			 over(row->ours.cpu_ms_per_gib, row->theirs.cpu_ms_per_gib));
	}
}
