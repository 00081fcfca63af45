/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the report of `nvswap tune` share: the page that is being written, its figures
 * and its text. All of it follows from one struct tune_result.
 */
#ifndef CLI_TUNE_REPORT_H
#define CLI_TUNE_REPORT_H

#include <stdio.h>

#include "tune.h"

struct report_page {
	FILE *out;
	const struct tune_result *result;
	/* Whose workers, engine and ways of submitting the pictures hold fixed: the choice, or the
	 * fastest where there is none; NULL: nothing was measured. */
	const struct tune_trial *fixed;
	/* All trials: the objective that was asked for first, and in each the fastest first. */
	const struct tune_trial **sorted;
	/* All bandwidths of a page have one unit, so that they can be compared. */
	double unit_bytes_per_s;
	const char *unit;
};

/* ---- Text; each figure goes into the caller's buffer, which is returned ---- */

#define FIGURE 32

/* What came from outside, as HTML shows it. */
void page_text(const struct report_page *page, const char *text);
/* The same of several lines. */
void page_lines(const struct report_page *page, const char *text);
const char *figure_size(uint64_t nbytes, char text[FIGURE]);
const char *figure_ns(uint64_t ns, char text[FIGURE]);
/* In the page's unit, without its name. */
const char *figure_rate(const struct report_page *page, double bytes_per_s, char text[FIGURE]);
/* "6.71 GB/s &#177; 0.04"; without the interval where one round has none. */
void page_rate(const struct report_page *page, const struct tune_trial *trial);
/* "1 MiB, depth 32, 2 workers, io_uring", and what is not as it is by default. */
void page_point(const struct report_page *page, const struct tune_point *point);
const char *objective_text(enum tune_objective objective);

/* ---- The values of a picture ---- */

/*
 * What stands for a block size and a depth: the trial with the chosen other settings, else the
 * fastest with others, *other then. NULL where none was measured.
 */
const struct tune_trial *cell_trial(const struct report_page *page, enum tune_objective objective,
				    uint32_t block_size, uint32_t queue_depth, bool *other);
/* 1, 2 or 5 times a power of ten: the smallest such that up to `most` of them make `span`. */
double round_step(double span, unsigned most);

/* ---- Parts of the page ---- */

extern const char *const page_style;
void page_maps(const struct report_page *page);
void page_curve(const struct report_page *page);
void page_finalists(const struct report_page *page);
void page_tried(const struct report_page *page);
void page_surroundings(const struct report_page *page);

#endif
