/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap info: reports what this machine and the paths can do, and advises what to change. It
 * changes nothing itself.
 */
#include <stddef.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/info/info.h"
#include "cli/options/options.h"

struct values {
	struct option_list paths;
	struct report_options report;
};

static const char *const directory[] = {"directory", NULL};
static const struct values defaults;

static const struct option_spec options[] = {
	{.name = "nvme-path",
	 .argument = "DIR",
	 .type = OPTION_LIST,
	 .offset = offsetof(struct values, paths),
	 .aliases = directory,
	 .help = "a directory, file or block device to examine; may be repeated"},
	REPORT_OPTIONS(offsetof(struct values, report)),
};

const struct command_spec info_command = {
	.name = "info",
	.summary = "Reports what this machine and each path can do, and advises what to change.",
	.notes = "Exit status: 0; 1 if a path can't be examined or the output can't be written; 2 "
		 "for bad usage.\nIn JSON, null means unknown, and for memlock_bytes and "
		 "memory_limit_bytes no limit.",
	.options = options,
	.noptions = COUNT_OF(options),
	.defaults = &defaults,
};

static int examine_path(struct report *report, unsigned i, const char *path)
{
	report->paths[i].asked = path;
	report->paths[i].info.size = sizeof(report->paths[i].info);
	report->paths[i].advice.size = sizeof(report->paths[i].advice);
	report->paths[i].error.size = sizeof(report->paths[i].error);
	report->paths[i].status = nvs_path_get_info(path, &report->paths[i].info,
						    &report->paths[i].error);
	if (report->paths[i].status) {
		say("%s", report->paths[i].error.text);
		return STATUS_FAILED;
	}
	nvs_machine_advise(&report->machine, &report->paths[i].info, &report->paths[i].advice);
	return 0;
}

/* Continues after a path that can't be examined. */
static int examine_paths(struct report *report, const struct option_list *paths)
{
	int status = 0;

	report->npaths = paths->n;
	for (unsigned i = 0; i < paths->n; i++)
		if (examine_path(report, i, paths->items[i]))
			status = STATUS_FAILED;
	return status;
}

static int write_report(const struct values *values, const struct report *report)
{
	struct output output;
	int status, closed;

	if (output_open(&output, values->report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	if (!status && values->report.format == REPORT_JSON)
		info_json(output.file, report);
	else if (!status)
		info_text(output.file, report);
	closed = output_close(&output);
	return status ? status : closed;
}

static int examine_and_report(const struct values *values, struct report *report)
{
	struct nvs_error error = {.size = sizeof(error)};
	int examined, written;

	report->machine.size = sizeof(report->machine);
	report->machine_advice.size = sizeof(report->machine_advice);
	if (nvs_machine_get_info(&report->machine, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	nvs_machine_advise(&report->machine, NULL, &report->machine_advice);
	examined = examine_paths(report, &values->paths);
	written = write_report(values, report);
	return examined ? examined : written;
}

int cmd_info(int argc, char **argv)
{
	struct values values = defaults;
	struct options_given given;
	struct report *report;
	int rc = options_parse(&info_command, argc, argv, &values, &given);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&info_command) : STATUS_USAGE;
	report = calloc(1, sizeof(*report));
	if (!report) {
		say("out of memory for the report");
		return STATUS_FAILED;
	}
	rc = examine_and_report(&values, report);
	free(report);
	return rc;
}
