/* SPDX-License-Identifier: Apache-2.0 */
/* --output-format and --output of the commands that write one report, as text or JSON. */
#ifndef CLI_OPTIONS_REPORT_OPTIONS_H
#define CLI_OPTIONS_REPORT_OPTIONS_H

#include "cli/options/options.h"

enum report_format { REPORT_NORMAL, REPORT_JSON };

struct report_options {
	unsigned format;    /* enum report_format */
	const char *output; /* a file; NULL: standard output */
};

extern const char *const report_formats[];

/* The two rows of a table of options; `place` is the offset of a struct report_options. */
#define REPORT_OPTIONS(place)                                                                      \
	{.name = "output-format",                                                                  \
	 .argument = "FORMAT",                                                                     \
	 .type = OPTION_CHOICE,                                                                    \
	 .offset = (place) + offsetof(struct report_options, format),                              \
	 .choices = report_formats,                                                                \
	 .help = "normal (the default) or json"},                                                  \
	{                                                                                          \
		.name = "output", .argument = "FILE", .type = OPTION_STRING,                       \
		.offset = (place) + offsetof(struct report_options, output),                       \
		.help = "write the report to FILE instead of standard output",                     \
	}

#endif
