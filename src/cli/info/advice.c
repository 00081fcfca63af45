/* SPDX-License-Identifier: Apache-2.0 */
/* The advice of a report, each line once. */
#include <string.h>

#include "cli/info/info.h"

static bool says(const struct nvs_advice *advice, const char *line)
{
	for (unsigned i = 0; i < advice->count; i++)
		if (!strcmp(advice->line[i], line))
			return true;
	return false;
}

/* Advice on the machine is the same for all paths; print it only once. */
static bool said_before(const struct report *report, unsigned path, const char *line)
{
	for (unsigned i = 0; i < path; i++)
		if (!report->paths[i].status && says(&report->paths[i].advice, line))
			return true;
	return false;
}

void report_each_advice(const struct report *report, advice_fn *fn, void *arg)
{
	unsigned examined = 0;

	for (unsigned i = 0; i < report->npaths; i++) {
		const struct nvs_advice *advice = &report->paths[i].advice;

		if (report->paths[i].status)
			continue;
		examined++;
		for (unsigned j = 0; j < advice->count; j++)
			if (!said_before(report, i, advice->line[j]))
				fn(arg, advice->line[j]);
	}
	for (unsigned j = 0; !examined && j < report->machine_advice.count; j++)
		fn(arg, report->machine_advice.line[j]);
}
