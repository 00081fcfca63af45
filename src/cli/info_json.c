/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of nvswap info as JSON: the same facts under the names of the public structures, and
 * null where a number says that there is none. Relies on yajl; decides nothing.
 */
#include <stdint.h>
#include <string.h>
#include <yajl/yajl_gen.h>

#include "commands.h"
#include "info.h"

static void json_write(void *arg, const char *text, size_t nbytes)
{
	/* What could not be written is found by output_close. */
	(void)fwrite(text, 1, nbytes, (FILE *)arg);
}

static void json_text(yajl_gen gen, const char *text)
{
	char ascii[1200];
	size_t n = 0;

	if (yajl_gen_string(gen, (const unsigned char *)text, strlen(text)) !=
	    yajl_gen_invalid_string)
		return;
	/* A path may be any bytes, JSON may not. */
	for (; n < sizeof(ascii) && text[n]; n++)
		ascii[n] = (char)((unsigned char)text[n] < 128 ? text[n] : '?');
	yajl_gen_string(gen, (const unsigned char *)ascii, n);
}

static void member_text(yajl_gen gen, const char *name, const char *text)
{
	json_text(gen, name);
	json_text(gen, text);
}

static void member_number(yajl_gen gen, const char *name, uint64_t number)
{
	json_text(gen, name);
	yajl_gen_integer(gen, (long long)number);
}

/* A number of which some values mean that there is none. */
static void member_number_if(yajl_gen gen, const char *name, bool known, int64_t number)
{
	json_text(gen, name);
	if (known)
		yajl_gen_integer(gen, number);
	else
		yajl_gen_null(gen);
}

static void member_bool(yajl_gen gen, const char *name, bool value)
{
	json_text(gen, name);
	yajl_gen_bool(gen, value);
}

static void json_machine(yajl_gen gen, const struct nvs_machine_info *machine)
{
	yajl_gen_map_open(gen);
	member_text(gen, "kernel", machine->kernel);
	member_number(gen, "cpus", machine->cpus);
	member_number(gen, "numa_nodes", machine->numa_nodes);
	member_number(gen, "memory_bytes", machine->memory_bytes);
	member_number_if(gen, "memlock_bytes", machine->memlock_bytes != UINT64_MAX,
			 (int64_t)machine->memlock_bytes);
	member_number(gen, "hugepage_bytes", machine->hugepage_bytes);
	member_number(gen, "hugepages_total", machine->hugepages_total);
	member_number(gen, "hugepages_free", machine->hugepages_free);
	member_text(gen, "transparent_hugepages", machine->transparent_hugepages);
	member_number(gen, "aio_nr", machine->aio_nr);
	member_number(gen, "aio_max_nr", machine->aio_max_nr);
	member_number_if(gen, "io_uring_disabled", machine->io_uring_disabled >= 0,
			 machine->io_uring_disabled);
	yajl_gen_map_close(gen);
}

static void json_engines(yajl_gen gen, const struct nvs_machine_info *machine)
{
	yajl_gen_map_open(gen);
	for (int i = 0; i < NVS_IOENGINE_COUNT; i++) {
		json_text(gen, nvs_ioengine_name((enum nvs_ioengine)i));
		yajl_gen_map_open(gen);
		member_bool(gen, "works", machine->ioengine[i].works);
		if (i == NVS_IOENGINE_AUTO && machine->ioengine[i].works)
			member_text(gen, "ioengine", nvs_ioengine_name(machine->auto_ioengine));
		member_text(gen, "reason", machine->ioengine[i].reason);
		yajl_gen_map_close(gen);
	}
	yajl_gen_map_close(gen);
}

static void json_drive(yajl_gen gen, const struct nvs_path_info *path)
{
	member_text(gen, "device", path->device);
	member_text(gen, "model", path->model);
	member_text(gen, "scheduler", path->scheduler);
	member_bool(gen, "rotational", path->rotational);
	member_number(gen, "logical_block_bytes", path->logical_block_bytes);
	member_number(gen, "physical_block_bytes", path->physical_block_bytes);
	member_number(gen, "max_io_bytes", path->max_io_bytes);
	member_number(gen, "max_hw_io_bytes", path->max_hw_io_bytes);
	member_number(gen, "nr_requests", path->nr_requests);
	member_number(gen, "max_segments", path->max_segments);
	member_number_if(gen, "numa_node", path->numa_node >= 0, path->numa_node);
}

static void json_path(yajl_gen gen, const struct nvs_path_info *path)
{
	member_text(gen, "filesystem", path->filesystem);
	member_bool(gen, "block_device", path->block_device);
	member_bool(gen, "direct", path->direct);
	member_number(gen, "dio_mem_align", path->dio_mem_align);
	member_number(gen, "dio_offset_align", path->dio_offset_align);
	member_bool(gen, "dio_from_statx", path->dio_from_statx);
	member_number(gen, "free_bytes", path->free_bytes);
	member_number(gen, "total_bytes", path->total_bytes);
	json_drive(gen, path);
}

static void json_advice(void *arg, const char *line)
{
	json_text(arg, line);
}

static void json_report(yajl_gen gen, const struct report *report)
{
	yajl_gen_map_open(gen);
	member_text(gen, "nvswap version", nvs_version());
	json_text(gen, "machine");
	json_machine(gen, &report->machine);
	json_text(gen, "ioengines");
	json_engines(gen, &report->machine);
	json_text(gen, "paths");
	yajl_gen_array_open(gen);
	for (unsigned i = 0; i < report->npaths; i++) {
		yajl_gen_map_open(gen);
		member_text(gen, "path", report->paths[i].asked);
		if (report->paths[i].status)
			member_text(gen, "error", report->paths[i].error.text);
		else
			json_path(gen, &report->paths[i].info);
		yajl_gen_map_close(gen);
	}
	yajl_gen_array_close(gen);
	json_text(gen, "advice");
	yajl_gen_array_open(gen);
	report_each_advice(report, json_advice, gen);
	yajl_gen_array_close(gen);
	yajl_gen_map_close(gen);
}

int report_json(FILE *out, const struct report *report)
{
	yajl_gen gen = yajl_gen_alloc(NULL);

	if (!gen) {
		say("no memory for the JSON output");
		return STATUS_FAILED;
	}
	yajl_gen_config(gen, yajl_gen_beautify, 1);
	yajl_gen_config(gen, yajl_gen_validate_utf8, 1);
	yajl_gen_config(gen, yajl_gen_print_callback, json_write, out);
	json_report(gen, report);
	yajl_gen_free(gen);
	return 0;
}
