/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a report's text.
 */
#ifndef CLI_REPORT_TEXT_H
#define CLI_REPORT_TEXT_H

#include "cli/report/group.h"

#define SHORT_NUMBER 32

/* fio's short numbers, such as 9999, 10.3k, 645MiB; returns text. */
const char *short_count(double value, char text[SHORT_NUMBER]);
const char *short_bytes(double value, unsigned thousand, char text[SHORT_NUMBER]);

/* Lines that fio does not have. */
void report_swap_text(FILE *file, const struct report_group *group);

#endif
