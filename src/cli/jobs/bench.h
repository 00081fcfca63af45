/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `nvswap bench` hand each other: options, the run, and its result.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "model.h"
#include "options.h"

/* nvswap's modes, which move tensors, and fio's, which move blocks of a file. */
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
	RW_RW,
	RW_RANDRW
};
enum bench_format { FORMAT_NORMAL, FORMAT_JSON, FORMAT_TERSE };
enum bench_eta { ETA_AUTO, ETA_ALWAYS, ETA_NEVER };

static inline bool is_fio_mode(unsigned rw)
{
	return rw >= RW_READ;
}

/* Whether one of fio's modes moves anything in that direction. */
static inline bool fio_mode_moves(unsigned rw, enum nvs_direction direction)
{
	if (rw == RW_RW || rw == RW_RANDRW)
		return true;
	return (direction == NVS_READ) == (rw == RW_READ || rw == RW_RANDREAD);
}

static inline bool fio_mode_is_random(unsigned rw)
{
	return rw == RW_RANDREAD || rw == RW_RANDWRITE || rw == RW_RANDRW;
}

/*
 * What one job is to do. The fields of the first group belong to the whole run and are those of
 * struct bench_plan.run.
 */
struct bench_options {
	unsigned formats;	     /* bits of enum bench_format */
	const char *output;	     /* NULL: standard output */
	uint64_t status_interval_ms; /* 0: none */
	unsigned eta;
	bool compare;
	uint64_t rounds;	     /* of --compare */
	struct option_list sections; /* of the job files, to be run; none: all */

	/* Of a job, as fio has them: */
	/* Sizes of blocks in fio's modes, by enum nvs_direction; of tensors, the first. */
	struct option_mix bssplit[2];
	/* Of the tensors together, or of the file; per cent are of a file that is there. */
	struct option_amount size;
	struct option_amount io_size; /* moved each time through the file, or in more times */
	const char *filename;	      /* fio's modes: in the directory; NULL: job.clone.0 */
	struct option_list filenames; /* as given, of which there may be one */
	const char *description;
	uint64_t rwmixread, rwmixwrite; /* per cent, of rw and randrw; the first counts */
	bool direct;			/* fio's modes may be without */
	bool time_based; /* goes on for all of runtime_ms, which else only bounds it */
	uint64_t ramp_time_ms, startdelay_ms;
	uint64_t thread_count; /* workers; 0: not given */
	uint64_t rate[2];      /* bytes a second, by enum nvs_direction; 0: without limit */
	bool group_reporting;
	const char *write_bw_log,
		*write_lat_log; /* the beginning of the logs' names; NULL: none, empty: the job's */
	uint64_t log_avg_msec;
	struct option_percentiles percentile_list;
	uint64_t rank;		   /* which store under nvme_path */
	bool stonewall, new_group; /* of job files */

	const char *config, *model, *trace;
	struct option_list nvme_path;
	uint64_t tensors, tensor_size;
	double scale;
	/* As struct option_mode: fio's suffix, I/Os from each random place, or else bytes that are
	 * left out after each I/O. */
	struct {
		unsigned rw;
		uint64_t rw_suffix;
	};
	unsigned ioengine;
	uint64_t loops, runtime_ms, ramp_loops;
	uint64_t bs[2], iodepth; /* bs by enum nvs_direction; 0: not given */
	uint64_t numjobs;	 /* as many of this job at the same time */
	uint64_t pool;		 /* bytes; 0: not given */
	uint64_t seed;
	uint64_t compute_us;
	uint64_t max_in_cpu; /* elements */
	uint64_t threads;    /* 0: not given */
	bool verify;
};

extern const struct command_spec bench_command;

/*
 * A job's options: init, then options_set of what is given, then settle (defaults that depend on
 * what was given), then check. check says, and returns -EINVAL for, what can't be together, and
 * options of `own` that do nothing with what the job does; `where` as in options_set, NULL: typed.
 */
void bench_options_init(struct bench_options *options);
void bench_options_settle(struct bench_options *options, const struct options_given *given);
int bench_options_check(const struct bench_options *options, const struct options_given *own,
			const char *where);

/*
 * Blocks that one of fio's modes moves: as bssplit says, or bs, or else of `block_size`. n is 0 in
 * a direction in which it moves none.
 */
void bench_blocks(const struct bench_options *options, uint64_t block_size,
		  struct option_mix blocks[2]);
/* Whether all are of one length, in both directions. */
bool bench_blocks_alike(const struct option_mix blocks[2]);

/* Whether the option of that name, which must be one, was given. */
bool bench_option_given(const struct options_given *given, const char *name);

/* The percentiles that fio prints. */
#define PERCENTILES                                                                                \
	{                                                                                          \
		1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99         \
	}
#define NPERCENTILES 17

/* Of modes step and params: sums over the measured steps, where nothing else is said. */
struct step_figures {
	uint64_t steps, skipped;
	struct nvs_step_io sum;
	uint64_t wall_min_ns, wall_max_ns; /* of one step */
	uint64_t shorter_ns;	    /* the shorter of I/O and compute, of which one is hidden */
	uint64_t updates_ns, tiles; /* step */
	struct nvs_step_io first;   /* that step alone, which is not measured */
	uint64_t layers;	    /* params */
	uint64_t elements, groups;  /* step */
	unsigned threads;
	const char *kernel;	       /* NULL: no step came to its end */
	double norm, clip, loss_scale; /* of the last step; norm below 0: it was not needed */
	uint64_t compared;	       /* elements, by --verify */
	uint64_t peak_bytes;	       /* of the whole process */
	uint64_t pool_rss_bytes;       /* what of the pool counts in it */
	uint64_t own_bytes;	       /* what the caller of the library brought along */
	uint64_t host_bytes;	       /* state that "ratio" leaves in memory */
	uint64_t store_bytes;	       /* of a store in memory, which is in no resident set */
};

/* fio's sampled figures of one direction: rates of windows of half a second. */
struct bench_samples {
	uint64_t n;
	double min, max, sum, sum_squares;
};

/* Too large for a stack. */
struct bench_result {
	int pid;		  /* of the process that ran it */
	uint64_t started_unix_ms; /* when the measuring began */
	struct bench_samples bw_bytes[2], iops[2];
	struct nvs_error error; /* code 0: every byte was moved and, if asked, compared equal */
	int signal;		/* that ended the run; 0: none */
	double elapsed_s;	/* the whole run */

	bool measured; /* the figures up to the next blank line are there */
	uint64_t window_ns;
	uint64_t user_us, system_us; /* of the whole process */
	uint64_t data_us;	     /* of these, for making and comparing contents */
	uint64_t updates_us;	     /* of these, for the optimizer's updates and norm */
	uint64_t context_switches, major_faults, minor_faults;
	uint64_t bytes[2]; /* of tensors, by enum nvs_direction */
	uint64_t transfers, evictions, pool_waits;
	struct nvs_latency latency[2][NVS_LATENCY_KINDS]; /* by enum nvs_direction */
	struct nvs_aio_stats aio;
	struct step_figures steps;

	bool opened;			/* stats are there */
	struct nvs_engine_stats engine; /* since it was opened */
	uint64_t pool_peak;
	uint64_t first_bytes, first_ns; /* the first swap-out, filling included; 0: none was */
	uint64_t verified_bytes, verify_errors;
};

#endif
