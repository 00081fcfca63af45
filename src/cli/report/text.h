/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a report's text.
 */
#ifndef CLI_REPORT_TEXT_H
#define CLI_REPORT_TEXT_H

#include "cli/report/group.h"

#define SIZE_TEXT 32

/* "1.0 MiB"; returns text. */
const char *text_size(uint64_t nbytes, char text[SIZE_TEXT]);
/* Begin a line of a job, and one that belongs to the line before. */
void text_label(FILE *file, const char *name);
void text_sublabel(FILE *file, const char *name);

/* The lines after the rates: the load, its steps, processor time, engine, pool and verification. */
void report_swap_text(FILE *file, const struct report_group *group);

#endif
