/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap compare`: its options, from the command line to the exit status.
 */
#include <stddef.h>

#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"
#include "cli/options/report_options.h"

struct values {
	double threshold;
	struct report_options report;
};

static const struct values defaults = {.threshold = 5};

static const struct option_spec options[] = {
	{.name = "threshold",
	 .argument = "PERCENT",
	 .type = OPTION_PERCENT,
	 .offset = offsetof(struct values, threshold),
	 .help = "smaller changes count as the same; a larger slowdown makes the exit\n"
		 "status 1 (5)"},
	REPORT_OPTIONS(offsetof(struct values, report)),
};

const struct command_spec compare_command = {
	.name = "compare",
	.summary = "Shows JSON results of nvswap bench or fio beside the first of them, and "
		   "distinguishes\nchanges from noise.",
	.notes = "RESULT is a file, or several of repeated runs: A1.json,A2.json. before=A1.json "
		 "names\nit in the output.\n\nExit status: 0; 1 if bandwidth, IOPS or latency "
		 "of any job got worse by more than\nthe threshold and beyond noise; 2 for bad "
		 "usage, or results that can't be read.",
	.operand = "RESULT RESULT...",
	.options = options,
	.noptions = COUNT_OF(options),
	.defaults = &defaults,
	.gone = (const struct option_gone[]){{"html", PAGE_BY_REPORT}, {NULL, NULL}},
};

int cmd_compare(int argc, char **argv)
{
	static struct comparison comparison;
	struct values values = defaults;
	struct options_given given;
	struct output output;
	int status = options_parse(&compare_command, argc, argv, &values, &given);
	bool json = values.report.format == REPORT_JSON;

	if (status)
		return status == OPTIONS_HELP ? options_help(&compare_command) : STATUS_USAGE;
	if (given.noperands < 2) {
		say("compare needs at least two results: nvswap compare BEFORE.json AFTER.json");
		return STATUS_USAGE;
	}
	comparison.threshold = values.threshold;
	if (comparison_read(&comparison, given.operands, given.noperands) ||
	    output_open(&output, values.report.output))
		return STATUS_USAGE;
	status = output_begin(&output);
	if (!status)
		(json ? compare_json : compare_text)(output.file, &comparison);
	if (output_close(&output) || status)
		return STATUS_USAGE;
	if (json)
		say_page(values.report.output);
	return comparison.slower ? STATUS_FAILED : 0;
}
