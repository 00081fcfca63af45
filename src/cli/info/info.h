/* SPDX-License-Identifier: Apache-2.0 */
/* The facts that nvswap info has collected, and how it writes them. */
#ifndef CLI_INFO_INFO_H
#define CLI_INFO_INFO_H

#include "base/json/write.h"
#include "base/numbers.h"
#include "cli/options/options.h"
#include "nvswap.h"

extern const struct command_spec info_command;

#define SMART_PAGE_BYTES 512
#define WEAR_DRIVES_MAX	 16 /* below a path */

/* How worn a drive is, by its SMART log, and how long it lasts. */
struct wear {
	char device[64];
	char why[192];	       /* why the SMART log is not known; "": the following three are */
	unsigned percent_used; /* of its endurance, by the drive's own estimate; may exceed 100 */
	double written_bytes, power_on_hours;
	double endurance_bytes; /* 0: unknown */
	bool rated;		/* that is what --tbw has told; false: estimated from the log */
	double own_daily_bytes; /* 0: unknown */
	/* until the endurance is used, at what the drive was given so far or at the job's rate;
	 * NAN: unknown */
	double own_days, job_days;
};

struct report {
	struct nvs_machine_info machine;
	struct nvs_advice machine_advice; /* used if no path could be examined */
	unsigned npaths, nadvice;
	double job_daily_bytes; /* on each drive; 0: not told */
	struct report_path {
		const char *asked;
		int status; /* of nvs_path_get_info; if not 0, only `error` is set */
		struct nvs_path_info info;
		struct nvs_error error;
		struct nvs_advice advice;
		struct wear drives[WEAR_DRIVES_MAX];
		unsigned ndrives;
	} paths[NVS_PATHS_MAX];
	/* Each line once: advice on the machine is the same for all paths. */
	const char *advice[NVS_PATHS_MAX * COUNT_OF(((struct nvs_advice *)NULL)->line)];
};

void info_write(struct json_writer *json, const struct report *report);

/* The members "machine" and "ioengines". */
void info_json_machine(struct json_writer *json, const struct nvs_machine_info *machine);
void info_json_path(struct json_writer *json, const struct nvs_path_info *path);

/* ---- wear.c ---- */
/* Sets percentage, bytes and hours from the page of the log. */
void smart_decode(const unsigned char page[SMART_PAGE_BYTES], struct wear *wear);
/* Reads the log of the drive, a name as in /sys/block; sets `why` where it can't be read. */
void smart_read(struct wear *wear);

/* Computes endurance, rates and days. `rated_bytes` is what the drive is made for, and
 * `job_daily_bytes` what it gets in a day; 0: not told. */
void wear_forecast(struct wear *wear, double rated_bytes, double job_daily_bytes);
/* Reads what the jobs of a result of `nvswap bench` write together in a day: those of steps what
 * the drive was given in each, others their bandwidth. -EINVAL, and errors of reading. */
int wear_job_rate(const char *path, double *daily_bytes, struct nvs_error *error);

#endif
