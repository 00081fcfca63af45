/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice as a configuration, and the result as one JSON object, which is a configuration too:
 * "aio" and "nvswap" are the choice, and DeepSpeed and nvswap ignore the block "tune".
 */
#include "cli/info/info.h"
#include "cli/tune/tune.h"

static void settings(struct json_writer *json, const struct tune_point *point)
{
	json_count(json, "block_size", point->block_size);
	json_count(json, "queue_depth", point->queue_depth);
	json_count(json, "thread_count", point->thread_count);
	json_bool(json, "single_submit", point->single_submit);
	json_bool(json, "overlap_events", point->overlap_events);
}

static void choice(struct json_writer *json, const struct tune_result *result)
{
	const struct tune_point *point = &result->outcome->chosen->point;

	json_open_object(json, "aio");
	settings(json, point);
	json_close_object(json);
	if (!tune_names_ioengine(result))
		return;
	json_open_object(json, "nvswap");
	json_text(json, "ioengine", nvs_ioengine_name(point->ioengine));
	json_close_object(json);
}

void tune_block(FILE *file, const struct tune_result *result)
{
	struct json_writer json = json_to(file, 2);

	json_open_object(&json, NULL);
	choice(&json, result);
	json_close_object(&json);
}

static void counts(struct json_writer *json, const char *key, const uint32_t *values, unsigned n)
{
	json_open_list(json, key);
	for (unsigned i = 0; i < n; i++)
		json_count(json, NULL, values[i]);
	json_close_list(json);
}

static void space(struct json_writer *json, const struct tune_space *space)
{
	json_open_object(json, "space");
	counts(json, "block_sizes", space->block_sizes, space->nblock_sizes);
	counts(json, "queue_depths", space->queue_depths, space->nqueue_depths);
	counts(json, "thread_counts", space->thread_counts, space->nthread_counts);
	json_count(json, "in_flight_max_bytes", space->in_flight_max);
	json_close_object(json);
}

/* The words of a command line that gives the same options. */
static void command(struct json_writer *json, const struct options_given *given)
{
	json_open_list(json, "command");
	json_text(json, NULL, "nvswap");
	json_text(json, NULL, "tune");
	for (unsigned i = 0; i < tune_command.noptions; i++) {
		char option[64];

		if (!given->text[i])
			continue;
		snprintf(option, sizeof(option), "--%s", tune_command.options[i].name);
		json_text(json, NULL, option);
		json_text(json, NULL, given->text[i]);
	}
	json_text(json, NULL, "--");
	json_text(json, NULL, given->operands[0]);
	json_close_list(json);
}

static void drive(struct json_writer *json, const struct tune_drive *about)
{
	struct nvs_advice advice = {.size = sizeof(advice)};

	info_json_machine(json, &about->machine);
	json_open_object(json, "drive");
	json_text(json, "path", about->path.path);
	info_json_path(json, &about->path);
	json_count(json, "working_set_bytes", about->working_set);
	json_count(json, "written_bytes", about->written_bytes);
	json_real(json, "write_first_bytes_per_s", about->write_first);
	json_real(json, "write_last_bytes_per_s", about->write_last);
	json_bool(json, "slows_down", about->slows_down);
	json_text(json, "slows_text", about->slows_text);
	json_close_object(json);
	nvs_machine_advise(&about->machine, &about->path, &advice);
	json_open_list(json, "advice");
	for (unsigned i = 0; i < advice.count; i++)
		json_text(json, NULL, advice.line[i]);
	json_close_list(json);
}

static void trial(struct json_writer *json, enum tune_objective objective,
		  const struct tune_trial *about)
{
	json_open_object(json, NULL);
	json_text(json, "objective", tune_objective_name(objective));
	json_text(json, "ioengine", nvs_ioengine_name(about->point.ioengine));
	settings(json, &about->point);
	json_text(json, "fate", tune_fate_name(about));
	json_bool(json, "finalist", about->finalist);
	json_count(json, "rounds", about->rounds);
	json_real(json, "bytes_per_s", about->mean);
	json_real(json, "bytes_per_s_half_width", about->half_width);
	if (about->finalist) {
		json_real(json, "to_fastest", about->to_best);
		json_real(json, "to_fastest_half_width", about->to_best_half_width);
	}
	json_count(json, "p50_ns", about->p50_ns);
	json_count(json, "p99_ns", about->p99_ns);
	json_real(json, "cpu_ms_per_gib", about->cpu_ms_per_gib);
	json_count(json, "spent_ns", about->spent_ns);
	json_count(json, "written_bytes", about->written);
	json_close_object(json);
}

static void trials(struct json_writer *json, enum tune_objective objective,
		   const struct tune_outcome *outcome)
{
	json_open_list(json, "trials");
	for (size_t i = 0; i < outcome->n; i++)
		trial(json, objective, &outcome->trials[i]);
	json_close_list(json);
	json_count(json, "chosen", (uint64_t)(outcome->chosen - outcome->trials));
	json_count(json, "fastest", (uint64_t)(outcome->fastest - outcome->trials));
}

static void found_out(struct json_writer *json, const struct tune_result *result)
{
	json_open_object(json, "tune");
	json_text(json, "nvswap version", nvs_version());
	json_count(json, "timestamp", result->finished_unix_s);
	json_count(json, "elapsed_ns", result->elapsed_ns);
	json_text(json, "objective", tune_objective_name(result->rules->objective));
	json_real(json, "tolerance", result->rules->tolerance);
	if (result->rules->latency_max_ns)
		json_count(json, "max_latency_ns", result->rules->latency_max_ns);
	json_count(json, "max_writes_bytes", result->options->max_writes);
	json_bool(json, "certain", result->outcome->certain);
	json_text(json, "why", result->outcome->why);
	json_text(json, "unsure", result->outcome->unsure);
	command(json, result->given);
	json_count(json, "seed", result->options->seed);
	space(json, result->space);
	drive(json, result->drive);
	trials(json, result->rules->objective, result->outcome);
	json_close_object(json);
}

void tune_json(FILE *file, const struct tune_result *result)
{
	struct json_writer json = json_to(file, 4);

	json_open_object(&json, NULL);
	choice(&json, result);
	found_out(&json, result);
	json_close_object(&json);
}
