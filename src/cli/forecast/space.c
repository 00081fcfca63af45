/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of a stage run at the same time, so their needs of a file system add up. Each stage removes
 * its files, so those of different stages don't.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/forecast/forecast.h"
#include "cli/settings.h"

#define SECTOR 512u

/* The store that a killed run left behind; this run's store replaces it. */
static uint64_t leftover_bytes(const struct bench_job *job, const char *path)
{
	char name[PATH_MAX];
	struct stat st;

	if (is_block_mode(job->options.rw))
		return 0;
	snprintf(name, sizeof(name), "%s/nvswap/rank%" PRIu64 "%s/data", path,
		 setting_number(job->config, "nvswap.rank"),
		 job->block == NVS_OFFLOAD_OPTIMIZER ? "-optimizer" : "");
	return stat(name, &st) ? 0 : (uint64_t)st.st_blocks * SECTOR;
}

static int look_at(const struct bench_job *job, struct path_space *place, struct nvs_error *error)
{
	struct nvs_path_info info = {.size = sizeof(info)};
	struct stat st = {0};
	int rc = nvs_path_get_info(place->path, &info, error);

	if (rc)
		return rc;
	snprintf(place->filesystem, sizeof(place->filesystem), "%s", info.filesystem);
	place->free = info.free_bytes + leftover_bytes(job, place->path);
	stat(place->path, &st);
	place->device = info.block_device ? st.st_rdev : st.st_dev;
	return 0;
}

int forecast_places(const struct bench_job *job, struct path_space *places, struct nvs_error *error)
{
	unsigned n = setting_path_count(job->config, job->block);
	struct forecast forecast;

	if (setting_device(job->config, job->block) != NVS_DEVICE_NVME)
		return 0;
	forecast_job(job, &forecast);
	for (unsigned i = 0; i < n; i++) {
		int rc;

		places[i] =
			(struct path_space){.path = nvs_config_get_path(job->config, job->block, i),
					    .need = forecast.space / n};
		rc = look_at(job, &places[i], error);
		if (rc)
			return rc;
	}
	return (int)n;
}

/* The needs of a stage's jobs of one file system. */
struct demand {
	uint64_t device, need;
};

static int refuse(const struct path_space *place, uint64_t need, struct nvs_error *error)
{
	char left[32], needed[32];

	*error = (struct nvs_error){.size = sizeof(*error), .code = -ENOSPC};
	snprintf(error->subject, sizeof(error->subject), "%s", place->path);
	snprintf(error->text, sizeof(error->text),
		 "%s (%s) has %s free, and this needs %s there: free some space, give another "
		 "path, or run a smaller job",
		 place->path, place->filesystem, size_text(place->free, left),
		 size_text(need, needed));
	return error->code;
}

static int add_place(struct demand *demands, unsigned *n, const struct path_space *place,
		     struct nvs_error *error)
{
	unsigned i = 0;

	while (i < *n && demands[i].device != place->device)
		i++;
	if (i == *n)
		demands[(*n)++] = (struct demand){.device = place->device};
	demands[i].need += place->need;
	return demands[i].need > place->free ? refuse(place, demands[i].need, error) : 0;
}

int forecast_space(const struct bench_plan *plan, unsigned *index, struct nvs_error *error)
{
	static struct demand demands[JOBS_MAX * NVS_PATHS_MAX];
	struct path_space places[NVS_PATHS_MAX];
	unsigned ndemands = 0;

	for (unsigned i = 0; i < plan->n; i++) {
		int n = forecast_places(&plan->jobs[i], places, error), rc = n < 0 ? n : 0;

		if (i && plan->jobs[i].stage != plan->jobs[i - 1].stage)
			ndemands = 0;
		*index = i;
		for (int p = 0; p < n && !rc; p++)
			rc = add_place(demands, &ndemands, &places[p], error);
		if (rc)
			return rc;
	}
	return 0;
}
