/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of nvswap info as JSON: the same facts under the names of the public structures, and
 * null where a number says that there is none. Relies on yajl; decides nothing.
 */
#include <stdint.h>
#include <yajl/yajl_gen.h>

#include "commands.h"
#include "info.h"
#include "json_fields.h"

/* A number of which some values mean that there is none. */
static void member_number_if(yajl_gen gen, const char *name, bool known, int64_t number)
{
	put_text(gen, name);
	if (known)
		yajl_gen_integer(gen, number);
	else
		yajl_gen_null(gen);
}

static void json_machine(yajl_gen gen, const struct nvs_machine_info *machine)
{
	yajl_gen_map_open(gen);
	text_field(gen, "kernel", machine->kernel);
	count_field(gen, "cpus", machine->cpus);
	count_field(gen, "numa_nodes", machine->numa_nodes);
	count_field(gen, "memory_bytes", machine->memory_bytes);
	member_number_if(gen, "memlock_bytes", machine->memlock_bytes != UINT64_MAX,
			 (int64_t)machine->memlock_bytes);
	count_field(gen, "hugepage_bytes", machine->hugepage_bytes);
	count_field(gen, "hugepages_total", machine->hugepages_total);
	count_field(gen, "hugepages_free", machine->hugepages_free);
	text_field(gen, "transparent_hugepages", machine->transparent_hugepages);
	count_field(gen, "aio_nr", machine->aio_nr);
	count_field(gen, "aio_max_nr", machine->aio_max_nr);
	member_number_if(gen, "io_uring_disabled", machine->io_uring_disabled >= 0,
			 machine->io_uring_disabled);
	yajl_gen_map_close(gen);
}

static void json_engines(yajl_gen gen, const struct nvs_machine_info *machine)
{
	yajl_gen_map_open(gen);
	for (int i = 0; i < NVS_IOENGINE_COUNT; i++) {
		put_text(gen, nvs_ioengine_name((enum nvs_ioengine)i));
		yajl_gen_map_open(gen);
		bool_field(gen, "works", machine->ioengine[i].works);
		if (i == NVS_IOENGINE_AUTO && machine->ioengine[i].works)
			text_field(gen, "ioengine", nvs_ioengine_name(machine->auto_ioengine));
		text_field(gen, "reason", machine->ioengine[i].reason);
		yajl_gen_map_close(gen);
	}
	yajl_gen_map_close(gen);
}

static void json_drive(yajl_gen gen, const struct nvs_path_info *path)
{
	text_field(gen, "device", path->device);
	text_field(gen, "model", path->model);
	text_field(gen, "scheduler", path->scheduler);
	bool_field(gen, "rotational", path->rotational);
	count_field(gen, "logical_block_bytes", path->logical_block_bytes);
	count_field(gen, "physical_block_bytes", path->physical_block_bytes);
	count_field(gen, "max_io_bytes", path->max_io_bytes);
	count_field(gen, "max_hw_io_bytes", path->max_hw_io_bytes);
	count_field(gen, "nr_requests", path->nr_requests);
	count_field(gen, "max_segments", path->max_segments);
	member_number_if(gen, "numa_node", path->numa_node >= 0, path->numa_node);
}

static void json_path(yajl_gen gen, const struct nvs_path_info *path)
{
	text_field(gen, "filesystem", path->filesystem);
	bool_field(gen, "block_device", path->block_device);
	bool_field(gen, "direct", path->direct);
	count_field(gen, "dio_mem_align", path->dio_mem_align);
	count_field(gen, "dio_offset_align", path->dio_offset_align);
	bool_field(gen, "dio_from_statx", path->dio_from_statx);
	count_field(gen, "free_bytes", path->free_bytes);
	count_field(gen, "total_bytes", path->total_bytes);
	json_drive(gen, path);
}

static void json_advice(void *arg, const char *line)
{
	put_text(arg, line);
}

static void json_report(yajl_gen gen, const struct report *report)
{
	yajl_gen_map_open(gen);
	text_field(gen, "nvswap version", nvs_version());
	put_text(gen, "machine");
	json_machine(gen, &report->machine);
	put_text(gen, "ioengines");
	json_engines(gen, &report->machine);
	put_text(gen, "paths");
	yajl_gen_array_open(gen);
	for (unsigned i = 0; i < report->npaths; i++) {
		yajl_gen_map_open(gen);
		text_field(gen, "path", report->paths[i].asked);
		if (report->paths[i].status)
			text_field(gen, "error", report->paths[i].error.text);
		else
			json_path(gen, &report->paths[i].info);
		yajl_gen_map_close(gen);
	}
	yajl_gen_array_close(gen);
	put_text(gen, "advice");
	yajl_gen_array_open(gen);
	report_each_advice(report, json_advice, gen);
	yajl_gen_array_close(gen);
	yajl_gen_map_close(gen);
}

int info_json(FILE *out, const struct report *report)
{
	yajl_gen gen = json_to(out);

	if (!gen) {
		say("no memory for the JSON output");
		return STATUS_FAILED;
	}
	json_report(gen, report);
	yajl_gen_free(gen);
	return 0;
}
