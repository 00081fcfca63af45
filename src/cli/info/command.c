/* SPDX-License-Identifier: Apache-2.0 */
/* nvswap info. Members have the names of the public structures; unknown numbers are null. */
#include <math.h>
#include <string.h>

#include "cli/commands.h"
#include "cli/info/info.h"

static void count_if(struct json_writer *json, const char *key, bool known, uint64_t count)
{
	if (known)
		json_count(json, key, count);
	else
		json_null(json, key);
}

void info_json_machine(struct json_writer *json, const struct nvs_machine_info *machine)
{
	json_open_object(json, "machine");
	json_text(json, "kernel", machine->kernel);
	json_count(json, "cpus", machine->cpus);
	json_count(json, "numa_nodes", machine->numa_nodes);
	json_count(json, "memory_bytes", machine->memory_bytes);
	count_if(json, "memory_limit_bytes", machine->memory_limit_bytes,
		 machine->memory_limit_bytes);
	json_text(json, "memory_limit_file", machine->memory_limit_file);
	count_if(json, "memory_free_bytes", machine->memory_free_bytes != UINT64_MAX,
		 machine->memory_free_bytes);
	count_if(json, "memlock_bytes", machine->memlock_bytes != UINT64_MAX,
		 machine->memlock_bytes);
	json_count(json, "hugepage_bytes", machine->hugepage_bytes);
	json_count(json, "hugepages_total", machine->hugepages_total);
	json_count(json, "hugepages_free", machine->hugepages_free);
	json_text(json, "transparent_hugepages", machine->transparent_hugepages);
	json_count(json, "aio_nr", machine->aio_nr);
	json_count(json, "aio_max_nr", machine->aio_max_nr);
	count_if(json, "io_uring_disabled", machine->io_uring_disabled >= 0,
		 (uint64_t)machine->io_uring_disabled);
	json_close_object(json);
	json_open_object(json, "ioengines");
	for (int i = 0; i < NVS_IOENGINE_COUNT; i++) {
		json_open_object(json, nvs_ioengine_name((enum nvs_ioengine)i));
		json_bool(json, "works", machine->ioengine[i].works);
		if (i == NVS_IOENGINE_AUTO && machine->ioengine[i].works)
			json_text(json, "ioengine", nvs_ioengine_name(machine->auto_ioengine));
		json_text(json, "reason", machine->ioengine[i].reason);
		json_close_object(json);
	}
	json_close_object(json);
}

void info_json_path(struct json_writer *json, const struct nvs_path_info *path)
{
	json_text(json, "filesystem", path->filesystem);
	json_bool(json, "block_device", path->block_device);
	json_bool(json, "direct", path->direct);
	json_count(json, "dio_mem_align", path->dio_mem_align);
	json_count(json, "dio_offset_align", path->dio_offset_align);
	json_bool(json, "dio_from_statx", path->dio_from_statx);
	json_count(json, "free_bytes", path->free_bytes);
	json_count(json, "total_bytes", path->total_bytes);
	json_text(json, "reserve_fails", path->reserve_fails);
	json_text(json, "device", path->device);
	json_text(json, "model", path->model);
	json_text(json, "scheduler", path->scheduler);
	json_bool(json, "rotational", path->rotational);
	json_count(json, "logical_block_bytes", path->logical_block_bytes);
	json_count(json, "physical_block_bytes", path->physical_block_bytes);
	json_count(json, "max_io_bytes", path->max_io_bytes);
	json_count(json, "max_hw_io_bytes", path->max_hw_io_bytes);
	json_count(json, "nr_requests", path->nr_requests);
	json_count(json, "max_segments", path->max_segments);
	count_if(json, "numa_node", path->numa_node >= 0, (uint64_t)path->numa_node);
}

static void put_drives(struct json_writer *json, const struct report *report,
		       const struct report_path *path)
{
	json_open_list(json, "drives");
	for (unsigned i = 0; i < path->ndrives; i++) {
		const struct wear *wear = &path->drives[i];
		bool known = !*wear->why;

		json_open_object(json, NULL);
		json_text(json, "device", wear->device);
		if (!known)
			json_text(json, "smart_error", wear->why);
		else if (wear->endurance_bytes <= 0)
			json_text(json, "note",
				  "how long it lasts is not known yet: --tbw tells what it is "
				  "rated for");
		count_if(json, "percentage_used", known, wear->percent_used);
		json_exact(json, "written_bytes", known ? wear->written_bytes : NAN);
		json_exact(json, "power_on_hours", known ? wear->power_on_hours : NAN);
		json_exact(json, "endurance_bytes",
			   wear->endurance_bytes > 0 ? wear->endurance_bytes : NAN);
		if (wear->endurance_bytes > 0)
			json_bool(json, "endurance_is_rated", wear->rated);
		json_exact(json, "own_bytes_per_day",
			   wear->own_daily_bytes > 0 ? wear->own_daily_bytes : NAN);
		json_exact(json, "days_at_own_rate", wear->own_days);
		json_exact(json, "job_bytes_per_day",
			   report->job_daily_bytes > 0 ? report->job_daily_bytes : NAN);
		json_exact(json, "days_at_job_rate", wear->job_days);
		json_close_object(json);
	}
	json_close_list(json);
}

void info_write(struct json_writer *json, const struct report *report)
{
	json_open_object(json, NULL);
	json_text(json, "nvswap version", nvs_version());
	info_json_machine(json, &report->machine);
	json_open_list(json, "paths");
	for (unsigned i = 0; i < report->npaths; i++) {
		json_open_object(json, NULL);
		json_text(json, "path", report->paths[i].asked);
		if (report->paths[i].status) {
			json_text(json, "error", report->paths[i].error.text);
		} else {
			info_json_path(json, &report->paths[i].info);
			put_drives(json, report, &report->paths[i]);
		}
		json_close_object(json);
	}
	json_close_list(json);
	json_texts(json, "advice", report->advice, report->nadvice);
	json_close_object(json);
}

/* ---- The command ---- */

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
	if (!values.paths.n && (values.tbw || values.result || values.daily_writes))
		return REFUSE(STATUS_USAGE,
			      "--tbw, --result and --daily-writes are of the drives below a path: "
			      "name it by --nvme-path");
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
