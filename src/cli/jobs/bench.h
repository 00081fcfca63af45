/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the parts of `nvswap bench`: the options and the result of a job.
 */
#ifndef CLI_JOBS_BENCH_H
#define CLI_JOBS_BENCH_H

#include "cli/modes/model/model.h"
#include "cli/options/options.h"

/* Modes that move tensors, and those that move blocks of a scratch file: the drive's baseline. */
enum bench_rw {
	RW_SWAPOUT,
	RW_SWAPIN,
	RW_SWAP,
	RW_STEP,
	RW_PARAMS,
	RW_READ,
	RW_WRITE,
	RW_RANDREAD,
	RW_RANDWRITE,
	RW_REPLAY /* of nvswap replay alone */
};
enum bench_format { FORMAT_NORMAL, FORMAT_JSON, FORMAT_JSON_PLUS };
#define FORMATS_JSON (1u << FORMAT_JSON | 1u << FORMAT_JSON_PLUS)
enum bench_pace { PACE_RECORDED, PACE_MAX };
enum bench_eta { ETA_AUTO, ETA_ALWAYS, ETA_NEVER };

static inline bool is_block_mode(unsigned rw)
{
	return rw >= RW_READ && rw <= RW_RANDWRITE;
}

static inline bool block_mode_writes(unsigned rw)
{
	return rw == RW_WRITE || rw == RW_RANDWRITE;
}

/*
 * The options of one job. Those of the first group belong to the whole run: struct bench_plan.run.
 */
struct bench_options {
	unsigned formats;	     /* bits of enum bench_format */
	const char *output;	     /* NULL: standard output */
	uint64_t status_interval_ms; /* 0: none */
	unsigned eta;
	bool dry_run;
	struct option_list sections; /* sections of the job files to run; empty: all */

	/* Of a job, as fio has them: */
	uint64_t size; /* of the tensors together, or of the file; 0: not given */
	const char *description;
	bool direct;	 /* always true; fio's default is another */
	bool time_based; /* run for all of runtime_ms, which is only a limit otherwise */
	uint64_t ramp_time_ms;
	uint64_t thread_count; /* workers; 0: not given */
	uint64_t rate;	       /* bytes a second in each direction; 0: no limit */
	bool group_reporting;
	bool stonewall, new_group; /* of job files */

	const char *config, *model, *trace;
	const char *replay; /* a trace or a list of accesses */
	unsigned pace;	    /* of replay; enum bench_pace */
	struct option_list nvme_path;
	uint64_t tensors, tensor_size;
	double scale;
	unsigned rw;
	unsigned ioengine;
	uint64_t loops, runtime_ms, ramp_loops;
	uint64_t bs, iodepth; /* 0: not given */
	uint64_t numjobs;     /* clones of the job */
	uint64_t pool;	      /* bytes; 0: not given */
	uint64_t seed;
	uint64_t compute_us;
	uint64_t max_in_cpu; /* elements */
	uint64_t threads;    /* 0: not given */
	bool verify;
};

extern const struct command_spec bench_command, replay_command;

/* Of enum bench_rw, also of RW_REPLAY. */
const char *bench_rw_name(unsigned rw);

/* Values of options of both commands, ended by NULL. */
extern const char *const bench_format_names[], *const bench_eta_names[];

/*
 * A job's options begin as the defaults. After they are set, settle fills in those that depend on
 * others, and prints the reason and returns -EINVAL if options conflict, or if one of `own` has no
 * effect in the job's mode. `where` as in options_set; NULL: the command line.
 */
extern const struct bench_options bench_defaults;
int bench_options_settle(struct bench_options *options, const struct options_given *given,
			 const struct options_given *own, const char *where);

/* Whether the option of that name was given. The name must exist. */
bool bench_option_given(const struct options_given *given, const char *name);

/* Modes step and params: sums over the measured steps, unless noted. */
struct step_figures {
	uint64_t steps, skipped;
	struct nvs_step_io sum;
	uint64_t wall_min_ns, wall_max_ns; /* of one step */
	uint64_t shorter_ns;	    /* the shorter of I/O and compute: what overlap can hide */
	uint64_t updates_ns, tiles; /* step */
	struct nvs_step_io first;   /* the first step, which is not measured */
	uint64_t layers;	    /* params */
	uint64_t elements, groups;  /* step */
	double state_bytes;	    /* step: read and written for each element in a step */
	unsigned threads;
	const char *kernel;	       /* NULL: no step completed */
	double norm, clip, loss_scale; /* of the last step; norm below 0: not computed */
	uint64_t peak_bytes;	       /* of the whole process */
	uint64_t pool_rss_bytes;       /* the pool's part of it */
	uint64_t own_bytes;	       /* memory of the library's caller */
	uint64_t host_bytes;	       /* state that "ratio" keeps in memory */
	uint64_t store_bytes;	       /* of a store in memory, which no resident set counts */
};

/* Of mode replay; recorded figures are 0 where the list was written by hand. */
struct replay_figures {
	uint64_t recorded_ns, recorded_stall_ns;
	uint64_t recorded_bytes[2]; /* by enum nvs_direction */
	uint64_t stall_ns;	    /* in calls that wait for the drive or for room */
	uint64_t calls;
};

/* fio's sampled figures of one direction: rates over windows of half a second. */
struct bench_samples {
	uint64_t n;
	double min, max, sum, sum_squares;
};

/* Too large for a stack. */
struct bench_result {
	int pid;		  /* of the job's process */
	uint64_t started_unix_ms; /* start of the measurement */
	struct bench_samples bw_bytes[2], iops[2];
	struct nvs_error
		error;	  /* code 0: every byte was moved and, with --verify, compared equal */
	int signal;	  /* signal that ended the run; 0: none */
	double elapsed_s; /* the whole run */

	bool measured; /* the figures up to the next blank line are valid */
	uint64_t window_ns;
	uint64_t user_us, system_us; /* of the whole process */
	uint64_t data_us;	     /* of these, for generating and comparing contents */
	uint64_t updates_us;	     /* of these, for the optimizer's updates and norm */
	uint64_t context_switches, major_faults, minor_faults;
	uint64_t bytes[2]; /* of tensors, by enum nvs_direction */
	uint64_t transfers, evictions, pool_waits;
	struct nvs_latency latency[2][NVS_LATENCY_KINDS]; /* by enum nvs_direction */
	struct nvs_aio_stats aio;
	struct step_figures steps;
	struct replay_figures replay;

	bool opened;			/* the figures below are valid */
	struct nvs_engine_stats engine; /* since opening */
	uint64_t pool_peak;
	uint64_t first_bytes, first_ns; /* the first swap-out, with filling; 0: none */
	uint64_t verified_bytes, verify_errors;
};

#endif
