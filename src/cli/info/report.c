/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of nvswap info, as JSON or text. Members have the names of the public structures;
 * unknown numbers are null, which text leaves out.
 */
#include <math.h>

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
