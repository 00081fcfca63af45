/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts that the text of a report is put together from.
 */
#ifndef CLI_REPORT_TEXT_H
#define CLI_REPORT_TEXT_H

#include "report_group.h"

#define SHORT_NUMBER 32

/* fio's short numbers, in text[], which is returned: 9999, 10.3k, 645M; with its B 645MiB, 676MB.
 */
const char *short_count(double value, char text[SHORT_NUMBER]);
const char *short_bytes(double value, unsigned thousand, char text[SHORT_NUMBER]);

/* What nvswap knows of a job beside what fio knows. */
void report_swap_text(FILE *file, const struct report_group *group);

#endif
