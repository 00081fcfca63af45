/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `nvswap bench`, which are the keys of its job files, and their rules. */
#include <assert.h>
#include <errno.h>

#include "base/numbers.h"
#include "cli/jobs/jobs.h"

#define STEPS	    3		/* the fewest with a minimum, mean and maximum */
#define THREADS_MAX 1024	/* optimizer_threads' */
#define TIME_MAX    31536000000 /* a year */
#define BYTES_MAX   (1ull << 60)
#define FIELD(name) offsetof(struct bench_options, name)

static const char *const rw_names[] = {[RW_SWAPOUT] = "swapout",     [RW_SWAPIN] = "swapin",
				       [RW_SWAP] = "swap",	     [RW_STEP] = "step",
				       [RW_PARAMS] = "params",	     [RW_READ] = "read",
				       [RW_WRITE] = "write",	     [RW_RANDREAD] = "randread",
				       [RW_RANDWRITE] = "randwrite", NULL};
/* Also with a suffix, such as randread:8. */
static const char *const fios_modes[] = {"read",     "write",	  "randread",	   "randwrite",
					 "rw",	     "readwrite", "randrw",	   "trim",
					 "randtrim", "trimwrite", "randtrimwrite", NULL};

static const char *const format_names[] = {
	[FORMAT_NORMAL] = "normal", [FORMAT_JSON] = "json", [FORMAT_JSON_PLUS] = "json+", NULL};
static const char *const eta_names[] = {
	[ETA_AUTO] = "auto", [ETA_ALWAYS] = "always", [ETA_NEVER] = "never", NULL};
#define NAMES(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

#define MODE(rw)     (1u << (rw))
#define SWAP_MODES   (MODE(RW_SWAPOUT) | MODE(RW_SWAPIN) | MODE(RW_SWAP))
#define STEP_MODES   (MODE(RW_STEP) | MODE(RW_PARAMS))
#define TENSOR_MODES (SWAP_MODES | STEP_MODES)
#define BLOCK_MODES  (MODE(RW_RANDWRITE + 1) - MODE(RW_READ))

static const struct option_spec option_specs[] = {
	{"config", "FILE", OPTION_STRING, FIELD(config),
	 .help = "a DeepSpeed JSON configuration; blocks that nvswap does not use are ignored"},
	{"nvme-path", "DIR", OPTION_LIST, FIELD(nvme_path), .aliases = NAMES("directory"),
	 .help = "a directory for the store or the file, or a raw block device for the store. "
		 "Several, separated by : or given again, are striped over. nvswap removes what it "
		 "creates there, and touches no kept store"},
	{"model", "FILE", OPTION_STRING, FIELD(model), .excludes = NAMES("tensors", "tensor-size"),
	 .modes = TENSOR_MODES,
	 .help = "a file whose tensors give the names, types and shapes, with generated contents: "
		 "a .safetensors or .pt file, a .safetensors.index.json, a folder of Hugging Face "
		 "with model.safetensors or its index, or a JSON file like a header (name to dtype "
		 "and shape)"},
	{"tensors", "N", OPTION_COUNT, FIELD(tensors), .min = 1, .max = MODEL_TENSORS_MAX,
	 .modes = TENSOR_MODES, .help = "number of generated tensors, without a model (16)"},
	{"tensor-size", "SIZE", OPTION_SIZE, FIELD(tensor_size), .min = 1, .max = 1ull << 50,
	 .modes = TENSOR_MODES,
	 .help = "bytes of each generated tensor (64m, or less where memory is short); with "
		 "rw=step, of its weights"},
	{"size", "SIZE", OPTION_SIZE, FIELD(size), .min = 1, .max = BYTES_MAX,
	 .excludes = NAMES("tensors", "scale"),
	 .help = "of a model, use only the first tensors up to this many bytes, at least one; "
		 "without a model, generate tensors of this many bytes together, the last one "
		 "shorter if need be. With rw=read, write, randread and randwrite, of the file "
		 "(1g)"},
	{"scale", "SHARE", OPTION_SHARE, FIELD(scale), .modes = TENSOR_MODES,
	 .help = "a smaller model of the same proportions, such as 0.25: that share of the "
		 "layers, whole, and of the rows of the other tensors; at least one of each"},
	{"rw", "MODE", OPTION_CHOICE, FIELD(rw), .choices = rw_names, .fios = fios_modes,
	 .aliases = NAMES("readwrite"),
	 .help = "swapout writes the tensors, swapin reads them, and swap (the default) reads, "
		 "changes and writes them back. step runs optimizer steps over state on the drive, "
		 "params forward and backward passes over the layers. The others move blocks of a "
		 "scratch file: what the drive does without nvswap"},
	{"loops", "N", OPTION_COUNT, FIELD(loops), .min = 1, .max = 1000000000,
	 .help = "passes over the model or the file (1); with rw=step and params, steps (3)"},
	{"runtime", "TIME", OPTION_DURATION, FIELD(runtime_ms), .max = TIME_MAX,
	 .help = "stop after this time even if loops are left; 0: no limit"},
	{"time-based", NULL, OPTION_FLAG, FIELD(time_based),
	 .help = "repeat the loops for all of the runtime"},
	{"ramp-time", "TIME", OPTION_DURATION, FIELD(ramp_time_ms), .max = TIME_MAX,
	 .help = "run this long before the measurement (0)"},
	{"ramp-loops", "N", OPTION_COUNT, FIELD(ramp_loops), .max = 1000000000,
	 .help = "run this many passes, or steps, before the measurement (0)"},
	{"rate", "BYTES", OPTION_SIZE, FIELD(rate), .max = BYTES_MAX,
	 .modes = SWAP_MODES | BLOCK_MODES,
	 .help = "limit reads, and writes, to this many bytes a second each; 0: no limit"},
	{"bs", "SIZE", OPTION_SIZE, FIELD(bs), .min = NVS_BLOCK_SIZE_MIN, .max = NVS_BLOCK_SIZE_MAX,
	 .multiple = 512, .help = "bytes of one I/O; aio.block_size"},
	{"iodepth", "N", OPTION_COUNT, FIELD(iodepth), .min = 1, .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "I/Os in flight on each worker; aio.queue_depth"},
	{"thread-count", "N", OPTION_COUNT, FIELD(thread_count), .min = 1,
	 .max = NVS_THREAD_COUNT_MAX, .help = "workers of each job; aio.thread_count"},
	{"numjobs", "N", OPTION_COUNT, FIELD(numjobs), .min = 1, .max = 256,
	 .help = "run this many clones of the job at the same time, each with its own store or "
		 "file and its own workers (1)"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .help = "the I/O engine; auto (the default) takes the first of the others that works "
		 "here"},
	{"direct", NULL, OPTION_FLAG, FIELD(direct), .min = 1,
	 .help = "I/O always bypasses the page cache; a job file of blocks says so, for fio"},
	{"pool", "SIZE", OPTION_SIZE, FIELD(pool), .min = 4096, .max = 1ull << 50,
	 .modes = TENSOR_MODES,
	 .help = "bytes of the pool, for buffer_count x buffer_size. Without it and --config: "
		 "256m, or twice the longest tensor if that is more; less than 256m where memory "
		 "is short. The pool must hold the longest tensor. With rw=params it must hold the "
		 "longest layer, and the default is smaller than the model, or else no layer would "
		 "be read again. With rw=step it also sets sub_group_size, and comes on top of "
		 "--max-in-cpu"},
	{"max-in-cpu", "ELEMENTS", OPTION_COUNT, FIELD(max_in_cpu), .max = 1ull << 50,
	 .modes = STEP_MODES,
	 .help = "with rw=step, elements whose state stays in memory between steps "
		 "(nvswap.optimizer_max_in_cpu); with rw=params, offload_param.max_in_cpu"},
	{"compute-us", "N", OPTION_COUNT, FIELD(compute_us), .max = 3600000000,
	 .modes = MODE(RW_PARAMS),
	 .help = "with rw=params, microseconds of computing at each use of a layer (0)"},
	{"threads", "N", OPTION_COUNT, FIELD(threads), .min = 1, .max = THREADS_MAX,
	 .modes = MODE(RW_STEP),
	 .help = "with rw=step, threads that compute; nvswap.optimizer_threads"},
	{"verify", NULL, OPTION_FLAG, FIELD(verify), .modes = SWAP_MODES | MODE(RW_PARAMS),
	 .help = "compare every byte read with what was written, with new contents each time. "
		 "Rates include that work, CPU per GiB does not"},
	{"seed", "N", OPTION_COUNT, FIELD(seed), .max = UINT64_MAX,
	 .help = "seed of generated data and of random offsets (1)"},
	{"description", "TEXT", OPTION_STRING, FIELD(description), .help = "text for the report"},
	{"group-reporting", NULL, OPTION_FLAG, FIELD(group_reporting),
	 .help = "report the jobs of a group as one"},
	{"trace", "FILE", OPTION_STRING, FIELD(trace),
	 .help = "write a timeline of the run in Chrome's trace event format, for Perfetto. "
		 "With several jobs t.json becomes t.N.json. It holds 1048576 spans, and the "
		 "number of lost ones goes to standard error"},
	{"stonewall", NULL, OPTION_FLAG, FIELD(stonewall), .scope = OPTION_OF_FILE,
	 .help = "start when all jobs above have ended, as a new group"},
	{"new_group", NULL, OPTION_FLAG, FIELD(new_group), .scope = OPTION_OF_FILE,
	 .help = "start a new group in the report with this job"},
	{"section", "NAME", OPTION_LIST, FIELD(sections), .scope = OPTION_OF_LINE,
	 .help = "run only this job of the job files; may be repeated"},
	{"dry-run", NULL, OPTION_FLAG, FIELD(dry_run), .scope = OPTION_OF_LINE,
	 .help = "print the space and bytes that each job takes, and the time if --rate or the "
		 "runtime gives it; run none of them"},
	{"status-interval", "TIME", OPTION_DURATION, FIELD(status_interval_ms), .min = 1,
	 .max = TIME_MAX, .scope = OPTION_OF_RUN,
	 .help = "report the figures so far at this interval"},
	{"eta", "WHEN", OPTION_CHOICE, FIELD(eta), .choices = eta_names, .scope = OPTION_OF_RUN,
	 .help = "show the line of progress; auto (the default): on a terminal"},
	{"output-format", "FORMAT", OPTION_CHOICES, FIELD(formats), .choices = format_names,
	 .scope = OPTION_OF_RUN,
	 .help = "normal, text (the default), json with fio's fields, or json+ with "
		 "latency histograms too. Several, separated by commas, follow one another. Beside "
		 "fio's fields JSON has config, engine and swap, and step for training steps"},
	{"output", "FILE", OPTION_STRING, FIELD(output), .scope = OPTION_OF_RUN,
	 .help = "write the report to this file (standard output)"},
};

const struct bench_options bench_defaults = {
	.formats = 1u << FORMAT_NORMAL,
	.eta = ETA_AUTO,
	.direct = true,
	.tensors = 16,
	.tensor_size = 64u << 20,
	.scale = 1,
	.rw = RW_SWAP,
	.loops = 1,
	.numjobs = 1,
	.seed = 1,
};

const struct command_spec bench_command = {
	.name = "bench",
	.summary =
		"Swaps the tensors of a model between a pinned pool in host memory and NVMe, in "
		"batches, measures the rates, and verifies the data if asked. Options override the "
		"configuration. Modes swapin and swap first swap everything out; that is reported "
		"separately. Modes step and params run training steps; their first step, which "
		"creates the optimizer's state or records the order of the layers, is not "
		"measured. Modes read, write, randread and randwrite move blocks of a file, as the "
		"drive's own baseline.\n\nWith job files in fio's form, options apply to every job "
		"and override the files. Names of options are keys there, as in \"iodepth=32\", "
		"with - or _.",
	.notes = "Sizes are in bytes or with k, m, g, t or p, also kb or KiB, all powers of 1024: "
		 "4096, 4k, 1M. Times are in seconds or with us, ms, s, m, h or d. Other numbers "
		 "may be written as in the configuration: 1e9, 2.5e7. "
		 "The exit status is 0 only if every byte was moved and, with --verify, compared "
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.operand = "[FILE.ini]...",
	.options = option_specs,
	.noptions = COUNT_OF(option_specs),
	.defaults = &bench_defaults,
};

const char *bench_rw_name(unsigned rw)
{
	return rw == RW_REPLAY ? "replay" : rw_names[rw];
}

bool bench_option_given(const struct options_given *given, const char *name)
{
	const struct option_spec *spec = options_find(&bench_command, name);

	assert(spec && "an option of this command");
	return given->text[spec - bench_command.options] != NULL;
}

int bench_options_settle(struct bench_options *options, const struct options_given *given,
			 const struct options_given *own, const char *where)
{
	const char *begin = where ? where : "", *colon = where ? ": " : "--";
	const char *modes[COUNT_OF(rw_names)];
	char text[384];
	unsigned n = 0;

	if (!bench_option_given(given, "loops") && MODE(options->rw) & STEP_MODES)
		options->loops = STEPS;
	if (is_block_mode(options->rw) && !options->size)
		options->size = 1u << 30;
	for (unsigned i = 0; i < COUNT_OF(option_specs); i++) {
		const struct option_spec *spec = &option_specs[i];

		if (!own->text[i] || !spec->modes || spec->modes & MODE(options->rw))
			continue;
		for (unsigned rw = 0; rw_names[rw]; rw++)
			if (spec->modes & MODE(rw))
				modes[n++] = rw_names[rw];
		modes[n] = NULL;
		join_names(modes, text);
		return REFUSE(-EINVAL, "%s%s%s has no effect with rw=%s: it is for %s", begin,
			      colon, spec->name, rw_names[options->rw], text);
	}
	if (options->time_based && !options->runtime_ms)
		return REFUSE(-EINVAL, "%s%stime-based needs runtime", begin, colon);
	return 0;
}
