/* SPDX-License-Identifier: Apache-2.0 */
/* The options and the result of `nvswap tune`, and its output formats. */
#ifndef CLI_TUNE_TUNE_H
#define CLI_TUNE_TUNE_H

#include <stdio.h>

#include "cli/options/options.h"
#include "cli/tune/search/search.h"
#include "nvswap.h"

#define TUNE_BLOCK_SIZE_MAX  (128u << 20)
#define TUNE_WORKING_SET_MIN ((uint64_t)64 << 20)

struct tune_options {
	const char *directory; /* the operand */
	unsigned objective;
	double tolerance;	 /* per cent */
	uint64_t max_latency_ms; /* limit of the 99th percentile; 0: none */
	uint64_t time_ms, working_set, max_writes;
	uint64_t block_size_min, block_size_max, queue_depth_max, thread_count_max; /* 0: default */
	unsigned ioengine; /* AUTO: all that work here */
	uint64_t seed;
	const char *apply, *output;
	unsigned format; /* 0 normal, 1 json */
};

/* The drive, and the effect of writing on its speed. */
struct tune_drive {
	struct nvs_machine_info machine;
	struct nvs_path_info path;
	uint64_t working_set;		/* bytes filled and used */
	uint64_t written_bytes;		/* total */
	double write_first, write_last; /* rates at the begin and end, bytes per second */
	bool slows_down;		/* by 20 % or more */
	char slows_text[256];
};

struct tune_result {
	const struct tune_options *options;
	const struct options_given *given; /* origin of the options */
	const struct tune_space *space;
	const struct tune_rules *rules;
	const struct tune_drive *drive;
	const struct tune_outcome *outcome;
	uint64_t elapsed_ns;
	uint64_t finished_unix_s;
};

extern const struct command_spec tune_command;

/* Like options_parse, starting from the defaults. */
int tune_options_parse(struct tune_options *options, struct options_given *given, int argc,
		       char **argv);

/* ---- Applying the choice ---- */

/*
 * Writes the choice into a DeepSpeed configuration: replaces the values of existing keys, adds the
 * others, and keeps every other byte. Replaces the file atomically, with its mode and owner; a link
 * stays a link. Without a point (NULL), only checks whether that can succeed. *named is the engine
 * that the file has named. -EINVAL: not a configuration.
 */
int tune_apply(const char *path, const struct tune_point *point, bool name_ioengine,
	       enum nvs_ioengine *named, struct nvs_error *error);

struct tune_text {
	char *bytes; /* malloc'ed */
	size_t nbytes;
};
/* The edit alone. Where it fails, the text may have a part of it. */
int tune_edit(struct tune_text *text, const char *name, const struct tune_point *point,
	      bool name_ioengine, enum nvs_ioengine *named, struct nvs_error *error);

/* ---- Output formats ---- */

const char *tune_fate_name(const struct tune_trial *trial);
const char *tune_objective_name(enum tune_objective objective);
/* Whether the choice must name its engine, because auto takes another one. */
bool tune_names_ioengine(const struct tune_result *result);
/* The choice as a configuration. A failed write sets the stream's error, as in tune_json. */
void tune_block(FILE *file, const struct tune_result *result);
/* The table of all trials. */
void tune_table(FILE *file, const struct tune_result *result);
/* The result as one JSON object. A failed write sets the stream's error, which its owner checks. */
void tune_json(FILE *file, const struct tune_result *result);

#endif
