/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of a run, from the command line or job files: what each does, and which run at the same
 * time; their options and results; and a job's process while it runs. */
#ifndef CLI_JOBS_JOBS_H
#define CLI_JOBS_JOBS_H

#include <sys/resource.h>

#include "cli/commands.h"
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

/* The options of one job. Those of the first group belong to the run: struct bench_plan.run. */
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

const char *bench_rw_name(unsigned rw);

/* A job's options begin as the defaults. After they are set, settle fills in those that depend on
 * others, and prints the reason and returns -EINVAL if options conflict, or if one of `own` has no
 * effect in the job's mode. `where` as in options_set; NULL: the command line. */
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

#define JOB_NAME_MAX 63
#define JOBS_MAX     256

struct access_list; /* replay/replay.h */

struct bench_job {
	char name[JOB_NAME_MAX + 1]; /* the section's; without a file, the mode's */
	unsigned index;		     /* in the plan, from 0 */
	unsigned stage;	  /* jobs of a stage run at the same time, stages in turn (stonewall) */
	unsigned groupid; /* fio's count of stonewall and new_group */
	unsigned clone;	  /* of numjobs, from 0 */
	unsigned rank;	  /* added to the configuration's: each job of a stage has its own store */
	struct bench_options options; /* the seed includes the clone */
	struct options_given given;   /* by the section, [global] or the command line */
	/* Made in the parent, by bench/command.c: */
	struct nvs_config *config; /* NULL: it was not prepared */
	enum nvs_block block;
	struct model model;
	struct access_list *accesses; /* of mode replay; else NULL */
	struct nvs_trace *trace;      /* while it runs; NULL: none */
};

struct bench_plan {
	/* options of the whole run: output, formats, status_interval_ms, eta */
	struct bench_options run;
	struct options_given given; /* on the command line or in [global] */
	struct bench_job *jobs;	    /* in the order of the files, clones adjacent */
	unsigned n;
	void *memory; /* holds the texts of options */
};

/* Options on the command line override the files for every job; without a file they are the only
 * job. Operands are files ("-": standard input); [global] ends with its file. Returns 0;
 * OPTIONS_HELP; or -EINVAL or the errno of a file after printing the reason with file and line.
 * Call jobs_free only after 0. */
int jobs_plan(struct bench_plan *plan, int argc, char **argv);
void jobs_free(struct bench_plan *plan);

/*
 * ---- jobfile.c ----
 *
 * The syntax of fio's job files: sections of lines that are "key=value" or a bare key, comments
 * from a ; or # to the end of the line, and in values ${NAME} for a variable of the environment.
 * Knows no key.
 */

/* The most memory that reading `nbytes` takes: a value of four bytes, ${X}, may stand for 4 KiB. */
#define JOBFILE_BYTES(nbytes) ((2u << 20) + 640 * (size_t)(nbytes))

struct jobfile_line {
	const char *file;
	unsigned line; /* from 1 */
	const char *key;
	char *value; /* as written, trimmed, with its quotes; NULL: a bare key */
};

struct jobfile_section {
	const char *name; /* "global", or that of a job; names may repeat */
	const char *file;
	unsigned line;
	struct jobfile_line *lines;
	size_t n;
};

struct jobfile {
	struct jobfile_section *sections; /* in the order of the file */
	size_t n;
	struct jobfile_line *lines; /* of all sections */
	size_t nlines;
};

/* Reads a file ("-": standard input), whose name must live as long as the result. What it allocates
 * goes to the chain *memory (first NULL), also after an error. -EINVAL with file and line: a line
 * in no section or of no form, or an unended [. -EFBIG above 1 MiB. Errno of reading. */
int jobfile_read(struct jobfile *jobfile, const char *path, void **memory, struct nvs_error *error);
void jobfile_forget(void **memory);

/* Replaces each ${NAME} in the line's value. Not done by the reader, because a variable that is
 * missing does not matter where the command line overrides the line. -EINVAL with file and line: an
 * unended ${, a variable that is not set, or a value of 4096 bytes or more. */
int jobfile_expand(void **memory, struct jobfile_line *line, struct nvs_error *error);

/*
 * ---- watch.c ----
 *
 * A job's process while it runs: its live figures, its waits for the other jobs of the stage and
 * for its rate, and the measured window: what the process, its aio and its engine did in between.
 */

/* ---- measure.c ---- */

struct baseline {
	uint64_t started_ns;
	struct rusage usage;
	struct nvs_engine_stats stats;
};

/* No transfer may be in flight. `engine` owns the aio; NULL: the aio has no engine. */
void measure_begin(struct nvs_aio *aio, struct nvs_engine *engine, struct baseline *from);
/* Stores the figures of the window, except data_us and updates_us. Bytes and transfers are those of
 * tensors, or, without an engine, those of I/Os. */
void measure_end(struct nvs_aio *aio, struct nvs_engine *engine, const struct baseline *from,
		 struct bench_result *result);
/* The largest resident set of the process (VmHWM); 0: unknown. */
uint64_t peak_memory(void);

enum job_phase {
	JOB_WAITING,
	JOB_PREPARING,
	JOB_READY,
	JOB_RAMPING,
	JOB_MEASURING,
	JOB_MEASURED,
	JOB_ENDED
};

/* In memory shared by the job's process and its parent. */
struct job_live {
	atomic_uint phase; /* enum job_phase */
	struct progress progress;
	atomic_ullong bytes[2]; /* of the measured part so far, by enum nvs_direction */
	atomic_ullong ios[2];
	atomic_ullong measuring_since_ns; /* CLOCK_MONOTONIC; 0: not yet */
	struct bench_result result;	  /* written by the job until JOB_ENDED */
	/* Figures so far: written only once per request, because the parent reads them then. */
	struct bench_result status;
	atomic_uint status_asked, status_answered;
	struct bench_result measured; /* of the whole measurement, valid from JOB_MEASURED on */
};

/* Called by a job's modes in the job's process. A NULL watch is allowed. */
struct job_watch;
/* Call once everything is open and filled: waits for the other jobs of the stage. Returns false if
 * the run is to end (a signal, or a job failed). */
bool job_begin(struct job_watch *watch);
/* Begin, with measure_begin, and end the measurement; samples are taken between. job_measured adds
 * the samples to a result that has the figures of measure_end. */
void job_measures(struct job_watch *watch, struct nvs_aio *aio, struct nvs_engine *engine,
		  struct baseline *from);
void job_measured(struct job_watch *watch, struct bench_result *result);
/* Sleeps until the job's rate allows `nbytes` more in that direction, counted from the last
 * job_begin or job_measures. False: the phase or the run ends first. */
bool job_pace(struct job_watch *watch, enum nvs_direction direction, uint64_t nbytes);

/* Sleeps until then, a time of clock_ns(). Returns false if a signal ends the run first. */
bool job_sleep_until(uint64_t due_ns);

/* Opens the watch of this process's job. `channel` is a socket: the job sends 'r' when it is ready
 * and begins when a byte arrives. A process has one. */
struct job_watch *job_watch_open(const struct bench_job *job, struct job_live *live, int channel);

#endif
