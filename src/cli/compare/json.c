/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comparison as JSON. Values are in fio's units, changes and half widths in per cent.
 */
#include <math.h>

#include "base/json/write.h"
#include "cli/compare/compare.h"

static void put_side(struct json_writer *json, const struct comparison *comparison, unsigned side,
		     unsigned job, const struct metric *metric)
{
	struct estimate estimate = comparison_estimate(comparison, side, job, metric);
	struct change change;

	json_open_object(json, NULL);
	json_text(json, "result", comparison->sides[side].label);
	json_exact(json, "value", estimate.value > 0 ? estimate.value : (double)NAN);
	json_exact(json, "half_width", 100 * estimate_half_width(&estimate));
	if (side) {
		change = comparison_change(comparison, side, job, metric);
		json_exact(json, "change", change.percent);
		json_exact(json, "change_half_width", change.half_width);
		json_text(json, "verdict", verdict_name(metric, change.verdict));
		json_bool(json, "beyond_threshold", change.beyond_threshold);
	}
	json_close_object(json);
}

/* As the results have them: what reads them refuses what is no percentile or bin. */
static void put_latencies(struct json_writer *json, const struct compare_side *side, unsigned job,
			  enum nvs_direction direction)
{
	static const char *const directions[] = {[NVS_READ] = "read", [NVS_WRITE] = "write"};
	static const char *const members[] = {"percentile", "bins"};

	json_open_list(json, directions[direction]);
	for (unsigned run = 0; run < side->nruns; run++) {
		json_open_object(json, NULL);
		for (unsigned i = 0; i < 2; i++) {
			const struct json_value *value = results_latency(side->runs[run].jobs[job],
									 direction, members[i]);

			if (value)
				json_number(json, members[i], "%.*s", (int)value->raw_length,
					    value->raw);
		}
		json_close_object(json);
	}
	json_close_list(json);
}

static void put_job(struct json_writer *json, const struct comparison *comparison, unsigned job)
{
	json_open_object(json, NULL);
	json_text(json, "jobname", comparison->jobs[job]);
	for (unsigned i = 0; i < METRICS; i++) {
		if (!comparison_has(comparison, job, &metrics[i]))
			continue;
		json_open_list(json, metrics[i].key);
		for (unsigned side = 0; side < comparison->nsides; side++)
			put_side(json, comparison, side, job, &metrics[i]);
		json_close_list(json);
	}
	json_open_list(json, "clat_ns");
	for (unsigned side = 0; side < comparison->nsides; side++) {
		json_open_object(json, NULL);
		json_text(json, "result", comparison->sides[side].label);
		put_latencies(json, &comparison->sides[side], job, NVS_READ);
		put_latencies(json, &comparison->sides[side], job, NVS_WRITE);
		json_close_object(json);
	}
	json_close_list(json);
	json_close_object(json);
}

void compare_json(FILE *file, const struct comparison *comparison)
{
	struct json_writer json = json_to(file, 2);
	char notes[512];

	comparison_notes(comparison, notes);
	json_open_object(&json, NULL);
	json_text(&json, "nvswap version", nvs_version());
	json_exact(&json, "threshold", comparison->threshold);
	json_text(&json, "notes", notes);
	json_open_list(&json, "results");
	for (unsigned side = 0; side < comparison->nsides; side++) {
		json_open_object(&json, NULL);
		json_text(&json, "label", comparison->sides[side].label);
		json_count(&json, "runs", comparison->sides[side].nruns);
		json_close_object(&json);
	}
	json_close_list(&json);
	json_open_list(&json, "jobs");
	for (unsigned job = 0; job < comparison->njobs; job++)
		put_job(&json, comparison, job);
	json_close_list(&json);
	json_close_object(&json);
	fputc('\n', file);
}
