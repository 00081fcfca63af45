/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The facts that nvswap info has collected, and how it writes them.
 */
#ifndef CLI_INFO_INFO_H
#define CLI_INFO_INFO_H

#include "base/json/write.h"
#include "base/numbers.h"
#include "cli/info/wear.h"
#include "cli/options/options.h"
#include "nvswap.h"

extern const struct command_spec info_command;

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
/* Members of the open object. */
void info_json_path(struct json_writer *json, const struct nvs_path_info *path);

#endif
