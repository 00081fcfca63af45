/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of the drives under a plan's paths, from /proc/diskstats.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/numbers.h"
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
	char line[512], name[32];
	struct disk_use *disk;
	int length;

	while (file && fgets(line, sizeof(line), file)) {
		char *rest = line;

		if (sscanf(line, "%*u %*u %31s%n", name, &length) != 1 ||
		    !(disk = find_disk(watch, name)))
			continue;
		rest += length;
		for (unsigned i = 0; i < DISK_COUNTERS; i++)
			disk->counters[i] = strtoull(rest, &rest, 10);
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
					watch->at[watch->n] = (struct disk_use){.name = ""};
					strcpy(watch->at[watch->n++].name, name);
				}
		}
	}
	read_counters(watch);
}

void disks_end(struct disk_watch *watch)
{
	struct disk_watch was = *watch;

	double ms;

	read_counters(watch);
	ms = (double)(watch->since_ns - was.since_ns) / 1e6;
	for (unsigned i = 0; i < watch->n; i++) {
		struct disk_use *disk = &watch->at[i];

		/* The counters of a drive that was replugged start again at 0. */
		for (unsigned at = 0; at < DISK_COUNTERS; at++)
			disk->counters[at] -= min_u64(disk->counters[at], was.at[i].counters[at]);
		disk->busy_percent =
			ms > 0 ? fmin(100 * (double)disk->counters[DISK_BUSY] / ms, 100) : 0;
	}
}
