/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of `nvswap bench` hand each other: options, the run, and its result.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "model.h"
#include "options.h"

enum bench_rw { RW_SWAPOUT, RW_SWAPIN, RW_SWAP, RW_STEP, RW_PARAMS };
enum bench_format { FORMAT_NORMAL, FORMAT_JSON };

struct bench_options {
	const char *config, *model, *output, *trace;
	struct option_list nvme_path;
	uint64_t tensors, tensor_size, size_limit;
	double scale;
	unsigned rw, ioengine, format;
	uint64_t loops, runtime_ms, ramp_loops;
	uint64_t bs, iodepth, numjobs; /* 0: not given */
	uint64_t pool;		       /* bytes; 0: not given */
	uint64_t seed;
	uint64_t compute_us;
	uint64_t max_in_cpu; /* elements */
	uint64_t threads;    /* 0: not given */
	bool verify;
};

extern const struct command_spec bench_command;

/* As options_parse, from the defaults on. */
int bench_options_parse(struct bench_options *options, struct options_given *given, int argc,
			char **argv);
/* Whether the option of that name, which must be one, was typed. */
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

struct bench_result {
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
	uint64_t latency_ns[2][NPERCENTILES];
	struct nvs_aio_stats aio;
	struct step_figures steps;

	bool opened;			/* stats are there */
	struct nvs_engine_stats engine; /* since it was opened */
	uint64_t pool_peak;
	uint64_t first_bytes, first_ns; /* the first swap-out, filling included; 0: none was */
	uint64_t verified_bytes, verify_errors;
};

/*
 * Opens an engine, runs what the options say, closes it. Returns result->error.code. A signal to
 * end stops it at the next batch.
 */
int bench_run(const struct bench_options *options, const struct nvs_config *config,
	      enum nvs_block block, const struct model *model, struct bench_result *result);

#endif
