/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap info: reports what this machine and the paths can do, and advises what to change. It
 * changes nothing itself.
 */
#include <stddef.h>
#include <string.h>

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

static void add_advice(struct report *report, const struct nvs_advice *advice)
{
	for (unsigned i = 0; i < advice->count; i++) {
		unsigned at = 0;

		while (at < report->nadvice && strcmp(report->advice[at], advice->line[i]) != 0)
			at++;
		report->advice[at] = advice->line[i];
		report->nadvice += at == report->nadvice;
	}
}

/* Continues after a path that can't be examined. Returns the exit status. */
static int examine_paths(struct report *report, const struct option_list *paths)
{
	unsigned examined = 0;

	for (; report->npaths < paths->n; report->npaths++) {
		struct report_path *path = &report->paths[report->npaths];

		path->asked = paths->items[report->npaths];
		path->info.size = sizeof(path->info);
		path->advice.size = sizeof(path->advice);
		path->error.size = sizeof(path->error);
		path->status = nvs_path_get_info(path->asked, &path->info, &path->error);
		if (path->status) {
			say("%s", path->error.text);
			continue;
		}
		examined++;
		nvs_machine_advise(&report->machine, &path->info, &path->advice);
		add_advice(report, &path->advice);
	}
	report->machine_advice.size = sizeof(report->machine_advice);
	nvs_machine_advise(&report->machine, NULL, &report->machine_advice);
	if (!examined)
		add_advice(report, &report->machine_advice);
	return examined < paths->n ? STATUS_FAILED : 0;
}

int cmd_info(int argc, char **argv)
{
	static struct report report;
	struct values values = defaults;
	struct options_given given;
	struct output output;
	struct nvs_error error = {.size = sizeof(error)};
	int examined, status, closed,
		rc = options_parse(&info_command, argc, argv, &values, &given);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&info_command) : STATUS_USAGE;
	report.machine.size = sizeof(report.machine);
	if (nvs_machine_get_info(&report.machine, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	examined = examine_paths(&report, &values.paths);
	if (output_open(&output, values.report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	if (!status && values.report.format == REPORT_JSON)
		info_json(output.file, &report);
	else if (!status)
		info_text(output.file, &report);
	closed = output_close(&output);
	return examined ? examined : status ? status : closed;
}
