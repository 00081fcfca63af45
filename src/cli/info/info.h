/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nvswap info has found, between the command that looks and the two forms it is written in.
 */
#ifndef CLI_INFO_H
#define CLI_INFO_H

#include <stdio.h>

#include "nvswap.h"
#include "options.h"

extern const struct command_spec info_command;

struct report {
	struct nvs_machine_info machine;
	struct nvs_advice machine_advice; /* what there is to say without any path */
	unsigned npaths;
	struct {
		const char *asked;
		int status; /* of nvs_path_info; then `error` is what there is */
		struct nvs_path_info info;
		struct nvs_error error;
		struct nvs_advice advice;
	} paths[NVS_PATHS_MAX];
};

/* Calls fn for each line of advice, in order; a line that holds for several paths once. */
typedef void advice_fn(void *arg, const char *line);
void report_each_advice(const struct report *report, advice_fn *fn, void *arg);

void info_text(FILE *out, const struct report *report);
/* 0, or an exit status after saying why. What `out` did not take is found when it is closed. */
int info_json(FILE *out, const struct report *report);

#endif
