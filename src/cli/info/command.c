/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap info: reports what this machine and the paths can do, and advises what to change. It
 * changes nothing itself.
 */
#include <string.h>

#include "cli/commands.h"
#include "cli/info/info.h"

struct values {
	struct option_list paths;
	uint64_t tbw, daily_writes;
	const char *result;
	struct report_options report;
};

static const char *const directory[] = {"directory", NULL};
static const char *const excludes_daily_writes[] = {"daily-writes", NULL};
static const char *const excludes_result[] = {"result", NULL};
static const struct values defaults;

#define FIELD(name) offsetof(struct values, name)

static const struct option_spec options[] = {
	{"nvme-path", "DIR", OPTION_LIST, FIELD(paths), .aliases = directory,
	 .help = "a directory, file or block device to examine; may be repeated"},
	{"tbw", "TB", OPTION_COUNT, FIELD(tbw), .min = 1, .max = 1000000,
	 .help = "terabytes (10^12 bytes) that the data sheet of each drive rates it for; without "
		 "it, what was written and the percentage used tell the endurance"},
	{"result", "FILE", OPTION_STRING, FIELD(result), .excludes = excludes_daily_writes,
	 .help = "a JSON result of nvswap bench: says how many days the drives last at the rate at "
		 "which its jobs write, spread evenly over the drives of all paths"},
	{"daily-writes", "SIZE", OPTION_SIZE, FIELD(daily_writes), .min = 1, .max = 1ull << 60,
	 .excludes = excludes_result,
	 .help = "the same for a job that writes so many bytes in a day"},
	REPORT_OPTIONS(FIELD(report)),
};

const struct command_spec info_command = {
	.name = "info",
	.summary = "Reports what this machine and each path can do, and advises what to change.",
	.notes = "Exit status: 0; 1 if a path can't be examined or the output can't be written; 2 "
		 "for bad usage.\nWhat is unknown is left out of the text, and null in JSON; of "
		 "memlock_bytes and memory_limit_bytes it means no limit.",
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

/* Reads the SMART logs, once for each drive. */
static void examine_wear(struct report *report, double rated_bytes, double job_daily_bytes)
{
	const struct wear *known[NVS_PATHS_MAX * WEAR_DRIVES_MAX];
	unsigned nknown = 0;

	for (unsigned i = 0; i < report->npaths; i++) {
		struct report_path *path = &report->paths[i];
		char names[sizeof(path->info.device)], *rest = names, *name;

		snprintf(names, sizeof(names), "%s", path->status ? "" : path->info.device);
		while ((name = strsep(&rest, ",")) && *name && path->ndrives < WEAR_DRIVES_MAX) {
			struct wear *wear = &path->drives[path->ndrives++];
			unsigned at = 0;

			snprintf(wear->device, sizeof(wear->device), "%s", name);
			while (at < nknown && strcmp(known[at]->device, name) != 0)
				at++;
			if (at < nknown) {
				*wear = *known[at];
				continue;
			}
			smart_read(wear);
			known[nknown++] = wear;
		}
	}
	report->job_daily_bytes = nknown ? job_daily_bytes / nknown : 0;
	for (unsigned i = 0; i < report->npaths; i++)
		for (unsigned d = 0; d < report->paths[i].ndrives; d++)
			wear_forecast(&report->paths[i].drives[d], rated_bytes,
				      report->job_daily_bytes);
}

int cmd_info(int argc, char **argv)
{
	static struct report report;
	struct values values = defaults;
	struct options_given given;
	struct output output;
	struct json_writer json;
	struct nvs_error error = {.size = sizeof(error)};
	double daily;
	int examined, status, closed,
		rc = options_parse(&info_command, argc, argv, &values, &given);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&info_command) : STATUS_USAGE;
	daily = (double)values.daily_writes;
	if (values.result && wear_job_rate(values.result, &daily, &error))
		return REFUSE(STATUS_USAGE, "%s",
			      *error.text ? error.text : nvs_strerror(error.code));
	report.machine.size = sizeof(report.machine);
	if (nvs_machine_get_info(&report.machine, &error))
		return REFUSE(STATUS_FAILED, "%s", error.text);
	examined = examine_paths(&report, &values.paths);
	examine_wear(&report, (double)values.tbw * 1e12, daily);
	if (output_open(&output, values.report.output))
		return STATUS_FAILED;
	status = output_begin(&output);
	json = report_writer(&values.report, output.file);
	if (!status)
		info_write(&json, &report);
	closed = output_close(&output);
	return examined ? examined : status ? status : closed;
}
