/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of the drives under a plan's paths, from /proc/diskstats. A drive whose counters can't
 * be read is left out of the report.
 */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "cli/report/report.h"

static struct disk_use *find_disk(struct disk_watch *watch, const char *name)
{
	for (unsigned i = 0; i < watch->n; i++)
		if (!strcmp(watch->at[i].name, name))
			return &watch->at[i];
	return NULL;
}

static void read_counters(struct disk_watch *watch)
{
	FILE *file = fopen("/proc/diskstats", "re");
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		struct disk_use is = {0}, *disk;

		if (sscanf(line,
			   "%*u %*u %31s %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
			   " %" SCNu64 " %" SCNu64 " %" SCNu64 " %*u %" SCNu64 " %" SCNu64,
			   is.name, &is.ios[NVS_READ], &is.merges[NVS_READ], &is.sectors[NVS_READ],
			   &is.ticks_ms[NVS_READ], &is.ios[NVS_WRITE], &is.merges[NVS_WRITE],
			   &is.sectors[NVS_WRITE], &is.ticks_ms[NVS_WRITE], &is.busy_ms,
			   &is.in_queue_ms) == 11 &&
		    (disk = find_disk(watch, is.name)))
			*disk = is;
	}
	if (file)
		fclose(file);
	watch->since_ns = clock_ns();
}

void disks_begin(struct disk_watch *watch, const struct bench_plan *plan)
{
	watch->n = 0;
	for (unsigned i = 0; i < plan->n; i++) {
		const struct bench_job *job = &plan->jobs[i];
		const char *path;

		for (unsigned p = 0; (path = nvs_config_get_path(job->config, job->block, p));
		     p++) {
			struct nvs_path_info info = {.size = sizeof(info)};
			char *rest = info.device, *name;

			if (nvs_path_get_info(path, &info, NULL))
				continue;
			while ((name = strsep(&rest, ",")))
				if (*name && strlen(name) < sizeof(watch->at->name) &&
				    watch->n < REPORT_DISKS_MAX && !find_disk(watch, name)) {
					watch->at[watch->n] = (struct disk_use){.in_queue_ms = 0};
					strcpy(watch->at[watch->n++].name, name);
				}
		}
	}
	read_counters(watch);
}

/* The counters of a drive that was replugged start again at 0. */
static void subtract(uint64_t *is, uint64_t was)
{
	*is -= *is < was ? *is : was;
}

void disks_end(struct disk_watch *watch)
{
	struct disk_watch was = *watch;

	read_counters(watch);
	for (unsigned i = 0; i < watch->n; i++) {
		struct disk_use *disk = &watch->at[i];

		for (int d = NVS_READ; d <= NVS_WRITE; d++) {
			subtract(&disk->ios[d], was.at[i].ios[d]);
			subtract(&disk->merges[d], was.at[i].merges[d]);
			subtract(&disk->ticks_ms[d], was.at[i].ticks_ms[d]);
			subtract(&disk->sectors[d], was.at[i].sectors[d]);
		}
		subtract(&disk->busy_ms, was.at[i].busy_ms);
		subtract(&disk->in_queue_ms, was.at[i].in_queue_ms);
		disk->elapsed_ms = (watch->since_ns - was.since_ns) / 1000000;
	}
}

double disk_busy_percent(const struct disk_use *disk)
{
	double percent = disk->elapsed_ms ? 100 * (double)disk->busy_ms / (double)disk->elapsed_ms
					  : 0;

	return percent < 100 ? percent : 100;
}
