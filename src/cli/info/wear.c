/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long a drive lasts: what is left of its endurance, by the rate at which it was written so far
 * and by that of a job. The endurance is the rated one, or else what was written by the percentage
 * that the drive says it has used for that.
 */
#include "cli/info/wear.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "cli/results.h"

#define NS_PER_DAY (86400 * 1e9)

static double days_of(double left_bytes, double daily_bytes)
{
	return daily_bytes > 0 ? fmax(left_bytes, 0) / daily_bytes : NAN;
}

void wear_forecast(struct wear *wear, double rated_bytes, double job_daily_bytes)
{
	double left;

	wear->own_days = wear->job_days = NAN;
	if (*wear->why)
		return;
	if (wear->power_on_hours >= 1)
		wear->own_daily_bytes = wear->written_bytes * 24 / wear->power_on_hours;
	wear->rated = rated_bytes > 0;
	if (wear->rated)
		wear->endurance_bytes = rated_bytes;
	else if (wear->percent_used)
		wear->endurance_bytes = wear->written_bytes * 100 / wear->percent_used;
	if (wear->endurance_bytes <= 0)
		return;
	left = wear->endurance_bytes - wear->written_bytes;
	wear->own_days = days_of(left, wear->own_daily_bytes);
	wear->job_days = days_of(left, job_daily_bytes);
}

int wear_job_rate(const char *path, double *daily_bytes, struct nvs_error *error)
{
	struct results results;
	int rc = results_read(&results, path, error);

	*daily_bytes = 0;
	for (const struct json_value *job = rc ? NULL : results.jobs->first; job && !rc;
	     job = job->next) {
		const struct json_value *step = json_member(job, "step"),
					*way = json_member(job, "write");
		double step_ns = result_number(step, "wall_mean_ns", path, error);

		rc = result_check(job, path, error);
		if (step_ns > 0)
			*daily_bytes += result_number(step, "drive_written_bytes", path, error) *
					NS_PER_DAY / step_ns;
		else
			*daily_bytes += result_number(way, "bw_bytes", path, error) * 86400;
		rc = rc ? rc : error->code;
	}
	if (!rc && *daily_bytes <= 0)
		rc = result_refuse(error, path, results.jobs, "these jobs write nothing");
	results_free(&results);
	return rc;
}
