/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of `nvswap tune`'s report: the page and its figures. */
#ifndef CLI_TUNE_REPORT_REPORT_H
#define CLI_TUNE_REPORT_REPORT_H

#include <stdio.h>

#include "cli/tune/tune.h"

struct report_page {
	FILE *out;
	const struct tune_result *result;
	/*
	 * The curves and maps have its workers, engine and flags: the choice, else the fastest;
	 * NULL: no measurement.
	 */
	const struct tune_trial *fixed;
	/* All trials: the requested objective first, each objective by falling rate */
	const struct tune_trial **sorted;
	double unit_bytes_per_s; /* unit of all rates on the page, so that they are comparable */
	const char *unit;
};

/* ---- figures.c: each figure goes into the caller's buffer, which is returned ---- */

#define FIGURE 32

const char *figure_size(uint64_t nbytes, char text[FIGURE]);
const char *figure_ns(uint64_t ns, char text[FIGURE]);
/* The rate in the page's unit, without its name. */
const char *figure_rate(const struct report_page *page, double bytes_per_s, char text[FIGURE]);
/* "6.71 GB/s &#177; 0.04"; no interval for a single round. */
void page_rate(const struct report_page *page, const struct tune_trial *trial);
/* "1 MiB, depth 32, 2 workers, io_uring", and settings other than the defaults. */
void page_point(const struct report_page *page, const struct tune_point *point);
const char *objective_text(enum tune_objective objective);
/*
 * The trial of a block size and a depth with the other settings of `fixed`; else the fastest with
 * different ones, and then *other is set. NULL: not measured.
 */
const struct tune_trial *cell_trial(const struct report_page *page, enum tune_objective objective,
				    uint32_t block_size, uint32_t queue_depth, bool *other);
/* The smallest of 1, 2 or 5 times a power of ten that divides `span` into at most `most` steps. */
double round_step(double span, unsigned most);

/* ---- Parts of the page ---- */

extern const char *const page_style;
void page_maps(const struct report_page *page);
void page_curve(const struct report_page *page);
void page_finalists(const struct report_page *page);
void page_tried(const struct report_page *page);
void page_conditions(const struct report_page *page);

#endif
