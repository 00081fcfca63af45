/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `nvswap tune` hand each other: the space of settings, what measures one of
 * them, the search, and its result. The search knows nothing of drives: it sees a meter.
 */
#ifndef CLI_TUNE_H
#define CLI_TUNE_H

#include <stdio.h>

#include "nvswap.h"
#include "options.h"

enum tune_objective { TUNE_SWAP, TUNE_READ, TUNE_WRITE, TUNE_OBJECTIVES };

struct tune_point {
	enum nvs_ioengine ioengine; /* never AUTO */
	uint32_t block_size, queue_depth, thread_count;
	bool single_submit, overlap_events;
};

#define TUNE_VALUES_MAX	    16
#define TUNE_BLOCK_SIZE_MAX (128u << 20)

/* All that may be chosen: every combination, less those whose bytes in flight are above the limit.
 */
struct tune_space {
	uint32_t block_sizes[TUNE_VALUES_MAX], queue_depths[TUNE_VALUES_MAX],
		thread_counts[TUNE_VALUES_MAX]; /* rising */
	unsigned nblock_sizes, nqueue_depths, nthread_counts;
	enum nvs_ioengine ioengines[NVS_IOENGINE_COUNT]; /* the one that auto takes first */
	unsigned nioengines;
	bool single_submits, overlap_events; /* both values of these too */
	uint64_t in_flight_max;		     /* block_size x queue_depth x thread_count, bytes */
};

/* One round of a point. */
struct tune_sample {
	double bytes_per_s;	 /* both directions together */
	uint64_t bytes[2];	 /* moved, by enum nvs_direction */
	uint64_t ns;		 /* measured; the round as a whole took more */
	uint64_t p50_ns, p99_ns; /* of the latency of an I/O, of the slower direction */
	double cpu_ms_per_gib;	 /* 0 where it can't be told */
};

/*
 * What measures: a real drive, or a simulated one in virtual time. measure() runs a point for about
 * `for_ns` and returns 0 or a negative errno with *error; -EINTR: asked to end. Errors but for
 * -EINTR and -ENOMEM end the search.
 */
struct tune_meter {
	int (*measure)(void *arg, const struct tune_point *point, enum tune_objective objective,
		       uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error);
	uint64_t (*now_ns)(void *arg);
	/* Told of each round, for a progress bar; may be NULL. */
	void (*progress)(void *arg, const char *phase, uint64_t spent_ns, uint64_t budget_ns);
	void *arg;
};

enum tune_fate {
	TUNE_DROPPED, /* no finalist, and slower by its rounds */
	TUNE_SLOWER,  /* a finalist that was beaten */
	TUNE_TIE,     /* within the tolerance of the fastest, and asks for more than the choice */
	TUNE_OPEN,    /* asks for less, seems as fast, and was not measured against the fastest */
	TUNE_CHOSEN,
	TUNE_ONLY_MAP, /* measured for the report alone, in whatever objective */
};

/* A point with all of its rounds in one objective. */
struct tune_trial {
	struct tune_point point;
	enum tune_objective objective;
	enum tune_fate fate;
	bool finalist;
	unsigned rounds;
	double mean, half_width; /* bytes a second, and of the 95 % confidence interval */
	double to_best, to_best_half_width; /* finalists: ratio to the fastest, of paired rounds */
	uint64_t p50_ns, p99_ns;	    /* medians over the rounds */
	double cpu_ms_per_gib;
	uint64_t spent_ns;
};

struct tune_rules {
	enum tune_objective objective;
	double tolerance;   /* 0.02: points within 2 % of the best are as good */
	uint64_t budget_ns; /* of the meter's clock */
	bool exhaustive;    /* every point of the space, in rounds, instead of a search */
	bool map;	    /* fills the map of blocks and depths in all objectives too */
	uint64_t seed;	    /* of the order in which points take turns */
};

struct tune_outcome {
	struct tune_trial *trials; /* in the order in which they were first measured */
	size_t n;
	const struct tune_trial *chosen; /* fewest in flight within the tolerance of the fastest */
	const struct tune_trial *fastest;
	/* false: time ran out before the finalists were told apart, or a trial is open */
	bool certain;
	uint64_t spent_ns;
	char why[640]; /* the choice, in a sentence or two */
};

/*
 * Finds the point. Ties within the tolerance go to the smaller depth (of all workers together: I/Os
 * in flight on the drive), then the smaller block, then the fewer workers, then to the settings'
 * defaults. -EINTR, -ENOMEM, -ETIME (not a single round in the budget), and errors of the meter;
 * *outcome then has what was measured, without a choice. The smallest point is in the space.
 */
int tune_search(const struct tune_space *space, const struct tune_rules *rules,
		const struct tune_meter *meter, struct tune_outcome *outcome,
		struct nvs_error *error);
void tune_outcome_free(struct tune_outcome *outcome);

/* ---- The workload: what a round does; tune_load.c ---- */

struct tune_load {
	/* How an aio is opened and what time it is: the drive's, or a simulated one's. */
	int (*open)(void *arg, const struct nvs_aio_config *config, struct nvs_aio **aio,
		    struct nvs_error *error);
	uint64_t (*now_ns)(void *arg);
	void *arg;
	const char *path;      /* of the file, which is there and filled */
	uint64_t working_set;  /* its bytes; 2 x in_flight_max and 128 MiB will do */
	void *memory;	       /* that is moved to and from, filled with data that is not zeros;
				  aligned to a huge page */
	uint64_t memory_bytes; /* in_flight_max and 64 MiB will do */
	bool (*stopped)(void); /* may be NULL */
	/* Has a clock stand still that can, while counters are read; may be NULL. */
	void (*hold)(void *arg, bool on);
};
/*
 * A tune_meter's measure() over a struct tune_load. A round also takes a warm-up, of up to half of
 * its time, and waits for what is in flight at its end. -EINVAL: memory or working set are too
 * small for the point.
 */
int tune_load_measure(void *load, const struct tune_point *point, enum tune_objective objective,
		      uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error);

/* ---- The drive: what `nvswap tune` found out beside the search ---- */

struct tune_options {
	const char *directory; /* the operand */
	unsigned objective;
	double tolerance; /* per cent */
	uint64_t time_ms, working_set;
	uint64_t block_size_min, block_size_max, queue_depth_max, thread_count_max; /* 0: default */
	unsigned ioengine; /* AUTO: those that work here */
	bool exhaustive;
	uint64_t seed;
	const char *apply, *report, *output;
	unsigned format; /* of the table: 0 normal, 1 json */
};

struct tune_drive {
	struct nvs_machine_info machine;
	struct nvs_path_info path;
	uint64_t working_set; /* bytes that were filled and worked on */
	/* Rates of writing at the beginning and at the end, bytes a second, and the bytes written
	 * by then; slows_down where the drive is slower by a fifth or more. */
	double write_first, write_last;
	uint64_t written_bytes;
	bool slows_down;
	char slows_text[256];
};

struct tune_result {
	const struct tune_options *options;
	const struct options_given *given; /* that these came from */
	const struct tune_space *space;
	const struct tune_rules *rules;
	const struct tune_drive *drive;
	const struct tune_outcome *outcome;
	uint64_t elapsed_ns;
	uint64_t finished_unix_s;
};

/* The choice as a configuration has it: {"aio": {...}}, and "nvswap": {"ioengine"} where it is not
 * the one that auto takes. Returns its length; cut where it is `nbytes` or more. */
size_t tune_block_text(const struct tune_result *result, char *text, size_t nbytes);

/*
 * Writes the choice into a DeepSpeed configuration: values of keys that are there are replaced,
 * others added, and every other byte stays. The file is replaced as a whole or not at all, and
 * keeps its mode and owner; a link stays one. -EINVAL where it is no configuration.
 */
int tune_apply(const char *path, const struct tune_point *point, bool name_ioengine,
	       struct nvs_error *error);
/* Whether tune_apply() could do it, so that nobody waits for a choice that has no place to go. */
int tune_apply_check(const char *path, struct nvs_error *error);
/* The edit alone: a new text, malloc'ed, into *out. */
int tune_edit(const char *text, size_t nbytes, const char *name, const struct tune_point *point,
	      bool name_ioengine, char **out, size_t *out_nbytes, struct nvs_error *error);

/* One page of HTML that needs nothing else. */
int tune_report_write(const char *path, const struct tune_result *result, struct nvs_error *error);
/* The table of what was tried, for people. */
void tune_table(FILE *file, const struct tune_result *result);

extern const struct command_spec tune_command;

/* As options_parse, from the defaults on. */
int tune_options_parse(struct tune_options *options, struct options_given *given, int argc,
		       char **argv);

#endif
