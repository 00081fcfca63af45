/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that tuning found out, as one JSON object that is a configuration too: "aio" and "nvswap" are
 * the choice, and "tune" is a block that DeepSpeed and nvswap pass over. Relies on yajl.
 */
#include "commands.h"
#include "json_fields.h"
#include "tune_words.h"

static void settings(yajl_gen gen, const struct tune_point *point)
{
	count_field(gen, "block_size", point->block_size);
	count_field(gen, "queue_depth", point->queue_depth);
	count_field(gen, "thread_count", point->thread_count);
	bool_field(gen, "single_submit", point->single_submit);
	bool_field(gen, "overlap_events", point->overlap_events);
}

static void choice(yajl_gen gen, const struct tune_result *result)
{
	const struct tune_point *point = &result->outcome->chosen->point;

	open_map(gen, "aio");
	settings(gen, point);
	yajl_gen_map_close(gen);
	if (!tune_names_ioengine(result))
		return;
	open_map(gen, "nvswap");
	text_field(gen, "ioengine", nvs_ioengine_name(point->ioengine));
	yajl_gen_map_close(gen);
}

static void machine(yajl_gen gen, const struct nvs_machine_info *info)
{
	open_map(gen, "machine");
	text_field(gen, "kernel", info->kernel);
	count_field(gen, "cpus", info->cpus);
	count_field(gen, "numa_nodes", info->numa_nodes);
	count_field(gen, "memory_bytes", info->memory_bytes);
	text_field(gen, "auto_ioengine", nvs_ioengine_name(info->auto_ioengine));
	yajl_gen_map_close(gen);
}

static void drive(yajl_gen gen, const struct tune_drive *about)
{
	open_map(gen, "drive");
	text_field(gen, "path", about->path.path);
	text_field(gen, "filesystem", about->path.filesystem);
	text_field(gen, "device", about->path.device);
	text_field(gen, "model", about->path.model);
	text_field(gen, "scheduler", about->path.scheduler);
	bool_field(gen, "rotational", about->path.rotational);
	count_field(gen, "max_io_bytes", about->path.max_io_bytes);
	count_field(gen, "working_set_bytes", about->working_set);
	count_field(gen, "written_bytes", about->written_bytes);
	real_field(gen, "write_first_bytes_per_s", about->write_first);
	real_field(gen, "write_last_bytes_per_s", about->write_last);
	bool_field(gen, "slows_down", about->slows_down);
	text_field(gen, "slows_text", about->slows_text);
	yajl_gen_map_close(gen);
}

static void trial(yajl_gen gen, const struct tune_trial *about)
{
	yajl_gen_map_open(gen);
	text_field(gen, "objective", tune_objective_name(about->objective));
	text_field(gen, "ioengine", nvs_ioengine_name(about->point.ioengine));
	settings(gen, &about->point);
	text_field(gen, "fate", tune_fate_name(about));
	bool_field(gen, "finalist", about->finalist);
	count_field(gen, "rounds", about->rounds);
	real_field(gen, "bytes_per_s", about->mean);
	real_field(gen, "bytes_per_s_half_width", about->half_width);
	if (about->finalist) {
		real_field(gen, "to_fastest", about->to_best);
		real_field(gen, "to_fastest_half_width", about->to_best_half_width);
	}
	count_field(gen, "p50_ns", about->p50_ns);
	count_field(gen, "p99_ns", about->p99_ns);
	real_field(gen, "cpu_ms_per_gib", about->cpu_ms_per_gib);
	count_field(gen, "spent_ns", about->spent_ns);
	yajl_gen_map_close(gen);
}

static void trials(yajl_gen gen, const struct tune_outcome *outcome)
{
	open_array(gen, "trials");
	for (size_t i = 0; i < outcome->n; i++)
		trial(gen, &outcome->trials[i]);
	yajl_gen_array_close(gen);
	count_field(gen, "chosen", (uint64_t)(outcome->chosen - outcome->trials));
	count_field(gen, "fastest", (uint64_t)(outcome->fastest - outcome->trials));
}

static void found_out(yajl_gen gen, const struct tune_result *result)
{
	open_map(gen, "tune");
	text_field(gen, "nvswap version", nvs_version());
	count_field(gen, "timestamp", result->finished_unix_s);
	count_field(gen, "elapsed_ns", result->elapsed_ns);
	text_field(gen, "objective", tune_objective_name(result->rules->objective));
	real_field(gen, "tolerance", result->rules->tolerance);
	bool_field(gen, "exhaustive", result->rules->exhaustive);
	bool_field(gen, "certain", result->outcome->certain);
	text_field(gen, "why", result->outcome->why);
	machine(gen, &result->drive->machine);
	drive(gen, result->drive);
	trials(gen, result->outcome);
	yajl_gen_map_close(gen);
}

int tune_json(FILE *file, const struct tune_result *result)
{
	yajl_gen gen = json_to(file);

	if (!gen) {
		say("no memory for the JSON output");
		return STATUS_FAILED;
	}
	yajl_gen_map_open(gen);
	choice(gen, result);
	found_out(gen, result);
	yajl_gen_map_close(gen);
	yajl_gen_free(gen);
	return 0;
}
