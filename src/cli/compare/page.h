/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the page of a comparison.
 */
#ifndef CLI_COMPARE_PAGE_H
#define CLI_COMPARE_PAGE_H

#include "cli/compare/compare.h"

/* Histograms and percentiles of a job's latencies as SVG; nothing where no result has any. */
void page_plots(FILE *file, const struct comparison *comparison, unsigned job);

#endif
