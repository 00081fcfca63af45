/* SPDX-License-Identifier: Apache-2.0 */
/* A run of `nvswap tune`: its options, the drive, the result, and the output formats. */
#ifndef CLI_TUNE_TUNE_H
#define CLI_TUNE_TUNE_H

#include <stdio.h>

#include "cli/options/options.h"
#include "cli/tune/search/search.h"

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
	const char *apply;
	struct report_options report;
};

struct tune_drive {
	struct nvs_machine_info machine;
	struct nvs_path_info path;
	int directory; /* its descriptor, which has the lock */
	/* Of writing, bytes per second; 0: not measured. */
	double fill;	     /* of the whole file */
	double reference[2]; /* of equal rounds before and after the search */
	bool slows_down;     /* by 20 % or more */
	char slows_text[256];
};

/* A round of tuning: like swapping, transfers of several blocks walk over the file in order, with
 * more of them submitted than the queues hold. */
struct tune_workload {
	/* Opens an aio of a simulated drive; NULL: of the real one. */
	int (*open)(void *arg, const struct nvs_config *config, struct nvs_aio **aio,
		    struct nvs_error *error);
	uint64_t (*now_ns)(void *arg); /* the clock of either */
	void *arg;
	int fd;			      /* a filled file */
	uint64_t working_set;	      /* its bytes; 2 x in_flight_max and 128 MiB suffice */
	void *memory;		      /* the data, incompressible; aligned to a huge page */
	uint64_t memory_bytes;	      /* in_flight_max and 64 MiB suffice */
	uint64_t written, writes_max; /* bytes submitted for writing, and their limit */
	double rate;		      /* of the last round */
	int (*stopped)(void);	      /* not 0: end early; may be NULL */
	/* Stops and restarts a simulated clock while counters are read; may be NULL. */
	void (*hold)(void *arg, bool on);
};

struct tuning {
	struct tune_options options;
	int argc; /* the command line, with operands behind the options */
	char **argv;
	uint64_t began_ns, elapsed_ns;
	struct tune_drive drive;
	struct tune_space space;
	struct tune_rules rules;
	struct tune_workload workload;
	struct tune_outcome outcome;
	struct nvs_error error;
};

extern const struct command_spec tune_command;
int tune_options_parse(struct tune_options *options, int argc, char **argv);
extern const char *const tune_objectives[];

/* ---- The drive ---- */

/* Examines machine and directory. -EBUSY: another process tunes there; others: it can't be
 * tuned. */
int tune_look(const char *directory, struct tune_drive *drive, struct nvs_error *error);
/* The size of the file. -ENOSPC; -EINVAL: above the limit of writes. */
int tune_choose_working_set(const struct tune_options *options, const struct tune_drive *drive,
			    uint64_t *working_set, struct nvs_error *error);
uint64_t tune_memory_bytes(const struct nvs_machine_info *machine);
/* The points to consider. -EINVAL: the options leave none; -ENOTSUP: their engine works not
 * here. */
int tune_space_make(const struct tune_options *options, const struct nvs_machine_info *machine,
		    uint64_t working_set, struct tune_space *space, struct nvs_error *error);
/* Fills the file from its beginning. Stops after `soft_ns` if enough is filled then, and sets the
 * working set to the filled part. -ETIME: too little after `hard_ns`; -EINTR. */
int tune_fill(struct tune_workload *workload, enum nvs_ioengine ioengine, struct tune_drive *drive,
	      uint64_t soft_ns, uint64_t hard_ns, struct nvs_error *error);
void tune_judge_writes(struct tune_drive *drive, uint64_t written);

/* ---- A round ---- */

/* A setting of a configuration that a point gives a value. */
struct tune_setting {
	const char *key; /* of the block "aio", with "aio." */
	uint32_t value;
	bool is_flag;
};
#define TUNE_SETTINGS 5
/* Those beside the I/O engine. */
void tune_settings(const struct tune_point *point, struct tune_setting settings[TUNE_SETTINGS]);
/* Opens the aio of a point. -EINVAL for a value that is out of range; errors of the drive. */
int tune_aio_open(const struct tune_workload *workload, const struct tune_point *point,
		  struct nvs_aio **aio, struct nvs_error *error);
/*
 * A tune_meter's measure() over a struct tune_workload. Besides what it counts, a round has a
 * warm-up of up to half its time, and waits for what is in flight at its end.
 *	-EDQUOT	the round would write beyond writes_max
 *	-EINVAL	memory or working set are too small for the point
 *	-EINTR	stopped() says so
 */
int tune_workload_measure(void *workload, const struct tune_point *point,
			  enum tune_objective objective, uint64_t for_ns,
			  struct tune_sample *sample, struct nvs_error *error);

/* ---- Applying the choice ---- */

/* Writes the choice into a DeepSpeed configuration: replaces the values of existing keys, adds the
 * others, and keeps every other byte. Replaces the file atomically, with its mode and owner; a link
 * stays a link. Without a point (NULL), only checks whether that can succeed. *named is the engine
 * that the file has named. -EINVAL: not a configuration. */
int tune_apply(const char *path, const struct tune_point *point, bool name_ioengine,
	       enum nvs_ioengine *named, struct nvs_error *error);

struct tune_text {
	char *bytes; /* malloc'ed */
	size_t nbytes;
};
/* The edit alone. Where it fails, the text may have a part of it. */
int tune_edit(struct tune_text *text, const char *name, const struct tune_point *point,
	      bool name_ioengine, enum nvs_ioengine *named, struct nvs_error *error);

/* ---- Output formats. A failed write sets the stream's error, which its owner checks. ---- */

/* Whether the choice must name its engine, because auto takes another one. */
bool tune_names_ioengine(const struct tuning *tuning);
void tune_table(FILE *file, const struct tuning *tuning);
/* The choice as a configuration, which may have the whole result as one more member. */
void tune_json(FILE *file, const struct tuning *tuning, bool whole);

#endif
