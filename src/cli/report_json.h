/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts that the JSON of a report is put together from: members of an open map.
 */
#ifndef CLI_REPORT_JSON_H
#define CLI_REPORT_JSON_H

#include <yajl/yajl_gen.h>

#include "report_group.h"

/* "config": what the job went by, in the form of the file that says it. */
void report_config_json(yajl_gen gen, const struct bench_job *job);
/* "engine" and "swap", what came of it; "step" where there were any. */
void report_swap_json(yajl_gen gen, const struct report_group *group);
void report_steps_json(yajl_gen gen, const struct report_group *group);

#endif
