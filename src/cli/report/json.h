/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a report's JSON: each writes members of the open object.
 */
#ifndef CLI_REPORT_JSON_H
#define CLI_REPORT_JSON_H

#include "base/json/write.h"
#include "cli/report/group.h"

/* "config": the resolved configuration. */
void report_config_json(struct json_writer *json, const struct bench_job *job);
/* "engine" and "swap"; "step". */
void report_swap_json(struct json_writer *json, const struct report_group *group);
void report_steps_json(struct json_writer *json, const struct report_group *group);

#endif
