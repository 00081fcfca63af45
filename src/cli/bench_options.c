/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of `nvswap bench` and keys of its job files: their table, and what must hold between
 * them. Looks at no file.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "bench.h"
#include "commands.h"

#define STEPS	    3	 /* their least, mean and most are told */
#define THREADS_MAX 1024 /* as its key has it */
#define SECTOR	    512
#define TIME_MAX    31536000000 /* a year */
#define BYTES_MAX   (1ull << 60)
#define FIELD(name) offsetof(struct bench_options, name)

static const char *const rw_names[] = {
	[RW_SWAPOUT] = "swapout", [RW_SWAPIN] = "swapin",     [RW_SWAP] = "swap",
	[RW_STEP] = "step",	  [RW_PARAMS] = "params",     [RW_READ] = "read",
	[RW_WRITE] = "write",	  [RW_RANDREAD] = "randread", [RW_RANDWRITE] = "randwrite",
	[RW_RW] = "rw",		  [RW_RANDRW] = "randrw",     NULL};
static const char *const rw_synonyms[] = {"readwrite", "rw", NULL};
/* fio's engines that have a thread for each I/O in flight, or none. */
static const char *const ioengine_synonyms[] = {"sync",	    "posix",  "psync", "posix",	  "vsync",
						"posix",    "pvsync", "posix", "pvsync2", "posix",
						"posixaio", "posix",  NULL};
static const char *const ioengine_names[] = {[NVS_IOENGINE_AUTO] = "auto",
					     [NVS_IOENGINE_IO_URING] = "io_uring",
					     [NVS_IOENGINE_LIBAIO] = "libaio",
					     [NVS_IOENGINE_POSIX] = "posix",
					     [NVS_IOENGINE_COUNT] = NULL};
static const char *const format_names[] = {
	[FORMAT_NORMAL] = "normal", [FORMAT_JSON] = "json", [FORMAT_TERSE] = "terse", NULL};
static const char *const eta_names[] = {
	[ETA_AUTO] = "auto", [ETA_ALWAYS] = "always", [ETA_NEVER] = "never", NULL};
/* fio's checksums. */
static const char *const verify_names[] = {
	"none",	    "crc32c",	"crc32c-intel", "crc32",  "crc64",  "crc16",
	"crc7",	    "md5",	"sha1",		"sha256", "sha512", "sha3-224",
	"sha3-256", "sha3-384", "sha3-512",	"xxhash", NULL};

/* Lists of names, for aliases and exclusions. */
#define NAMES(...)                                                                                 \
	(const char *const[])                                                                      \
	{                                                                                          \
		__VA_ARGS__, NULL                                                                  \
	}

static const struct option_spec option_specs[] = {
	{"config", "FILE", OPTION_STRING, FIELD(config),
	 .help = "a DeepSpeed JSON configuration, whole or only its blocks"},
	{"nvme-path", "DIR", OPTION_LIST, FIELD(nvme_path), .aliases = NAMES("directory"),
	 .help = "where the store, or the file, goes: a directory or a raw block device;\n"
		 "several, with : between or given again, are striped over. \\: is a : in\n"
		 "a name. What is put there is removed at the end",
	 .manual = ".Ar dir\n"
		   "is where the store, or the file of\n"
		   ".Xr fio 1 Ns 's\n"
		   "modes, goes: a directory or a raw block device.\n"
		   "Several, with\n"
		   ".Li \\&:\n"
		   "between them or given again, are striped over;\n"
		   ".Li \\e:\n"
		   "is a colon in a name.\n"
		   "What is put there is removed at the end, and a kept store is not touched."},
	{"model", "FILE", OPTION_STRING, FIELD(model),
	 .excludes = NAMES("tensors", "tensor-size", "bssplit"),
	 .help = "a .safetensors file, whose tensors are the data, or a JSON file in the\n"
		 "form of its header, for the shapes alone",
	 .manual = "The model: a\n"
		   ".Pa .safetensors\n"
		   "file, whose tensors are the data, or a JSON file in the form of its header "
		   "(name to dtype and\n"
		   "shape), for the shapes alone."},
	{"tensors", "N", OPTION_COUNT, FIELD(tensors), .min = 1, .max = MODEL_TENSORS_MAX,
	 .help = "made-up tensors instead of a model (16)"},
	{"tensor-size", "SIZE", OPTION_SIZE, FIELD(tensor_size), .min = 1, .max = 1ull << 50,
	 .help = "bytes in each of them (64m); with rw=step, of its weights"},
	{"bssplit", "MIX", OPTION_MIX, FIELD(bssplit), .min = 1, .max = NVS_BLOCK_SIZE_MAX,
	 .excludes = NAMES("tensors", "tensor-size"),
	 .help = "instead of these: sizes of made-up tensors and their shares in per cent,\n"
		 "64k/70:1m/30; --size bytes of them (1g). In fio's modes, of blocks, or one\n"
		 "mix for reads and one for writes: 4k/60:8k/40,64k"},
	{"size", "SIZE", OPTION_AMOUNT, FIELD(size), .min = 1, .max = BYTES_MAX,
	 .excludes = NAMES("tensors", "scale"), .aliases = NAMES("size-limit"),
	 .help = "only the model's first tensors, up to so many bytes, at least one; of\n"
		 "made-up tensors, so many bytes. In fio's modes, bytes of the file (1g);\n"
		 "of one that is there also a share, 50% (all)"},
	{"io-size", "SIZE", OPTION_AMOUNT, FIELD(io_size), .min = 1, .max = BYTES_MAX,
	 .aliases = NAMES("io-limit"),
	 .help = "in fio's modes, bytes to be moved: fewer than --size each time through the\n"
		 "file, or more, however many times that takes; or a share of it, 50% (all)"},
	{"scale", "SHARE", OPTION_SHARE, FIELD(scale),
	 .help = "only the model's first tensors, up to this share of its bytes, such\n"
		 "as 0.25; at least one"},
	{"rw", "MODE", OPTION_MODE, FIELD(rw), .max = BYTES_MAX, .choices = rw_names,
	 .synonyms = rw_synonyms, .aliases = NAMES("readwrite"),
	 .help = "swapout writes the tensors, swapin reads them, swap reads, changes and\n"
		 "writes back (the default). step: optimizer steps over state on the\n"
		 "drive. params: forward and backward over the layers. The others are\n"
		 "fio's, on blocks of a file, with the same engine. randread:8: eight I/Os\n"
		 "follow each other from each random place. write:64k: so much is left out\n"
		 "after each I/O",
	 .manual =
		 ".Cm swapout\n"
		 "writes the tensors,\n"
		 ".Cm swapin\n"
		 "reads them, and\n"
		 ".Cm swap ,\n"
		 "the default, reads, changes and writes back, as training does.\n"
		 "Modes\n"
		 ".Cm swapin\n"
		 "and\n"
		 ".Cm swap\n"
		 "begin with a swap-out of everything, which is not measured with the rest.\n"
		 ".Cm step\n"
		 "and\n"
		 ".Cm params\n"
		 "are training steps; see below.\n"
		 "The others are those of\n"
		 ".Xr fio 1 ,\n"
		 "on blocks of a file, with the same engine;\n"
		 ".Cm readwrite\n"
		 "is\n"
		 ".Cm rw .\n"
		 "Behind a colon a random mode may have how many I/Os follow each other from each\n"
		 "random place, as in\n"
		 ".Li randread:8 ,\n"
		 "and one in sequence how many bytes are left out after each I/O, as in\n"
		 ".Li write:64k ."},
	{"rwmixread", "PERCENT", OPTION_COUNT, FIELD(rwmixread), .max = 100,
	 .excludes = NAMES("rwmixwrite"),
	 .help = "of rw=rw and randrw: reads among the blocks (50)"},
	{"rwmixwrite", "PERCENT", OPTION_COUNT, FIELD(rwmixwrite), .max = 100,
	 .help = "instead of rwmixread: writes among the blocks"},
	{"filename", "FILE", OPTION_LIST, FIELD(filenames),
	 .help = "in fio's modes: a file in the directory (JOB.N.0, removed at the end), or of a\n"
		 "whole name, which needs no directory; one that is there is read alone, and\n"
		 "kept. \\: is a : in it"},
	{"loops", "N", OPTION_COUNT, FIELD(loops), .min = 1, .max = 1000000000,
	 .help = "times through the model or the file (1); with rw=step or params,\n"
		 "steps (3)"},
	{"runtime", "TIME", OPTION_DURATION, FIELD(runtime_ms), .max = TIME_MAX,
	 .aliases = NAMES("timeout"),
	 .help = "no longer than 30, 500ms, 5m, 1h, even if loops are left; 0: without limit"},
	{"time-based", NULL, OPTION_FLAG, FIELD(time_based),
	 .help = "go on for all of the runtime, however many loops that takes"},
	{"ramp-time", "TIME", OPTION_DURATION, FIELD(ramp_time_ms), .max = TIME_MAX,
	 .help = "run for so long before the measuring begins (0)"},
	{"ramp-loops", "N", OPTION_COUNT, FIELD(ramp_loops), .max = 1000000000,
	 .help = "times through the model, or steps, before the measuring begins (0)"},
	{"startdelay", "TIME", OPTION_DURATION, FIELD(startdelay_ms), .max = TIME_MAX,
	 .help = "begin so long after the other jobs (0)"},
	{"rate", "BYTES[,BYTES]", OPTION_RATES, FIELD(rate), .max = BYTES_MAX,
	 .help = "read and write at most so many bytes a second, each: 100m; or one for\n"
		 "reads and one for writes: 100m,50m or 100m, or ,50m; 0: without limit"},
	{"bs", "SIZE[,SIZE]", OPTION_SIZES, FIELD(bs), .min = NVS_BLOCK_SIZE_MIN,
	 .max = NVS_BLOCK_SIZE_MAX, .multiple = SECTOR, .aliases = NAMES("blocksize"),
	 .help = "aio.block_size: bytes in one I/O; in fio's modes, or one for reads and one\n"
		 "for writes: 4k,8k"},
	{"iodepth", "N", OPTION_COUNT, FIELD(iodepth), .min = 1, .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "aio.queue_depth: I/Os in flight on each worker"},
	{"thread-count", "N", OPTION_COUNT, FIELD(thread_count), .min = 1,
	 .max = NVS_THREAD_COUNT_MAX, .aliases = NAMES("workers"),
	 .help = "aio.thread_count: workers of one job"},
	{"numjobs", "N", OPTION_COUNT, FIELD(numjobs), .min = 1, .max = 256,
	 .help = "so many of this job at the same time, each with its own store or file\n"
		 "and its own workers (1)"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .synonyms = ioengine_synonyms,
	 .help = "how I/O is done; auto takes the first of the others that works here\n"
		 "(auto). fio's sync, psync, vsync, pvsync, pvsync2 and posixaio are posix"},
	{"direct", NULL, OPTION_FLAG, FIELD(direct),
	 .help = "past the page cache (1); direct=0 in fio's modes alone"},
	{"pool", "SIZE", OPTION_SIZE, FIELD(pool), .min = 4096, .max = 1ull << 50,
	 .help = "bytes of the pool, for buffer_count x buffer_size. Without it and\n"
		 "--config: 256m, or twice the longest tensor if that is more; with\n"
		 "rw=params three times the longest layer, with rw=step 256m. It must\n"
		 "hold the longest tensor, and with rw=params the longest layer. With\n"
		 "rw=step it sets sub_group_size too, and is beside --max-in-cpu"},
	{"max-in-cpu", "ELEMENTS", OPTION_COUNT, FIELD(max_in_cpu), .max = 1ull << 50,
	 .help = "rw=step: elements whose state stays in memory from step to step,\n"
		 "nvswap.optimizer_max_in_cpu. rw=params: offload_param.max_in_cpu.\n"
		 "No other mode"},
	{"compute-us", "N", OPTION_COUNT, FIELD(compute_us), .max = 3600000000,
	 .help = "microseconds that each visit of a layer computes (0); rw=params alone"},
	{"threads", "N", OPTION_COUNT, FIELD(threads), .min = 1, .max = THREADS_MAX,
	 .help = "nvswap.optimizer_threads: that compute; rw=step alone"},
	{"verify", NULL, OPTION_FLAG, FIELD(verify), .choices = verify_names,
	 .help = "compare every byte that was read with what was written, new contents\n"
		 "each time; rates include that work, CPU per GiB does not. fio's names of\n"
		 "checksums turn it on too: what is compared are the bytes themselves.\n"
		 "With rw=step: compare a sample of each group, up to four runs of 4096\n"
		 "elements, with a scalar Adam in double, to within the rounding of fp32",
	 .manual = "Compare every byte that was read with what was written, with new contents each "
		   "time.\n"
		   "Rates include that work, the CPU time per GiB does not.\n"
		   "Names of the checksums of\n"
		   ".Xr fio 1 ,\n"
		   "as in\n"
		   ".Li verify=crc32c ,\n"
		   "turn it on too: what is compared are the bytes themselves.\n"
		   ".Cm none\n"
		   "is off.\n"
		   "In mode\n"
		   ".Cm step\n"
		   "a sample is compared; see below."},
	{"seed", "N", OPTION_COUNT, FIELD(seed), .max = UINT64_MAX,
	 .help = "of the data of tensors that no file gives, of all data of rw=step, which\n"
		 "takes shapes alone from a model, and of random offsets (1)"},
	{"rank", "N", OPTION_COUNT, FIELD(rank), .max = UINT32_MAX,
	 .help = "which store under the directory: rank<N> (0, and the next for each job\n"
		 "that runs there at the same time)"},
	{"description", "TEXT", OPTION_STRING, FIELD(description),
	 .help = "of the job, for the report"},
	{"group-reporting", NULL, OPTION_FLAG, FIELD(group_reporting),
	 .help = "report the jobs of a group as one"},
	{"percentile-list", "LIST", OPTION_PERCENTILES, FIELD(percentile_list),
	 .help = "of completion latencies: 50:99:99.9 (fio's)"},
	{"write-bw-log", "PREFIX", OPTION_STRING, FIELD(write_bw_log), .may_be_empty = true,
	 .help = "the bandwidth over time, in fio's form, into PREFIX_bw.N.log; if PREFIX\n"
		 "is empty, or the key of a job file bare, it is the job's name"},
	{"write-lat-log", "PREFIX", OPTION_STRING, FIELD(write_lat_log), .may_be_empty = true,
	 .help = "latencies over time, into PREFIX_slat.N.log, _clat and _lat; if PREFIX is\n"
		 "empty, it is the job's name"},
	{"log-avg-msec", "MS", OPTION_COUNT, FIELD(log_avg_msec), .max = 3600000,
	 .help = "milliseconds that each line of these logs stands for; 0: each I/O has its\n"
		 "line (0)"},
	{"trace", "FILE", OPTION_STRING, FIELD(trace),
	 .help = "a timeline of the run, for Perfetto or chrome://tracing; of several jobs,\n"
		 "t.json is t.N.json",
	 .manual = "Write a timeline of the run in the Chrome trace event format, which Perfetto "
		   "and chrome://tracing\n"
		   "open; also of a run that fails.\n"
		   "It has room for 1048576 spans, and what finds none is counted on standard "
		   "error."},
	{"stonewall", NULL, OPTION_FLAG, FIELD(stonewall), .scope = OPTION_OF_FILE,
	 .aliases = NAMES("wait_for_previous"),
	 .help = "begin when all jobs above have ended; also a new group"},
	{"new_group", NULL, OPTION_FLAG, FIELD(new_group), .scope = OPTION_OF_FILE,
	 .help = "this job and those below are a group of their own in the report"},
	{"section", "NAME", OPTION_LIST, FIELD(sections), .scope = OPTION_OF_LINE,
	 .help = "of the job files, run this job alone; may be repeated"},
	{"compare", NULL, OPTION_FLAG, FIELD(compare), .scope = OPTION_OF_LINE,
	 .help = "run fio with the same jobs in turn, and put the two side by side"},
	{"rounds", "N", OPTION_COUNT, FIELD(rounds), .min = 1, .max = 1000, .scope = OPTION_OF_LINE,
	 .help = "turns of --compare (3)"},
	{"status-interval", "TIME", OPTION_DURATION, FIELD(status_interval_ms), .min = 1,
	 .max = TIME_MAX, .scope = OPTION_OF_RUN,
	 .help = "a report of what is there so far, each so often"},
	{"eta", "WHEN", OPTION_CHOICE, FIELD(eta), .choices = eta_names, .scope = OPTION_OF_RUN,
	 .help = "the line of progress: auto, on a terminal alone (the default)"},
	{"output-format", "FORMAT", OPTION_CHOICES, FIELD(formats), .choices = format_names,
	 .scope = OPTION_OF_RUN,
	 .help = "text, JSON and terse lines as fio's; several with commas (normal)",
	 .manual = ".Cm normal ,\n"
		   "the default,\n"
		   ".Cm json\n"
		   "and\n"
		   ".Cm terse\n"
		   "have the shapes of\n"
		   ".Xr fio 1 Ns 's ,\n"
		   "so that tools for them read these; several, with commas between them, come one "
		   "after the other.\n"
		   "Beside the fields of\n"
		   ".Xr fio 1 ,\n"
		   "JSON has\n"
		   ".Dq config\n"
		   "as it was resolved,\n"
		   ".Dq engine\n"
		   "and\n"
		   ".Dq swap ,\n"
		   "and in each job of training steps\n"
		   ".Dq step ."},
	{"output", "FILE", OPTION_STRING, FIELD(output), .scope = OPTION_OF_RUN,
	 .help = "where the result goes (standard output)"},
};

/* They are copied as one value. */
_Static_assert(FIELD(rw_suffix) - FIELD(rw) == offsetof(struct option_mode, suffix), "a mode");

static const struct bench_options defaults = {
	.formats = 1u << FORMAT_NORMAL,
	.eta = ETA_AUTO,
	.rounds = 3,
	.rwmixread = 50,
	.direct = true,
	.percentile_list = {PERCENTILES, NPERCENTILES},
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
		"Swaps the tensors of a model between a pinned pool in host memory and NVMe,\n"
		"batch by batch, measures it, and verifies it if asked. Options override the\n"
		"configuration. Modes swapin and swap begin with a swap-out of all, which is not\n"
		"measured with the rest. Modes step and params run training steps instead, and\n"
		"begin with one that is not measured: it makes the optimizer's state, or records\n"
		"the order in which layers are used. fio's modes move blocks of a file.\n"
		"\n"
		"With job files in fio's form, options hold for each of their jobs, over what the\n"
		"files say. Names of options are keys there, as in \"iodepth=32\", with - or _.",
	.notes = "Sizes are in bytes or with k, m, g, t or p, also kb or KiB, all of 1024: 4096, "
		 "4k, 1M.\n"
		 "Times are in seconds or with us, ms, s, m, h or d. Other numbers may be written "
		 "as in\n"
		 "the configuration: 1e9, 2.5e7.\n"
		 "The exit status is 0 only if every byte was moved and, with --verify, compared\n"
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.operand = "[FILE.ini]...",
	.options = option_specs,
	.noptions = sizeof(option_specs) / sizeof(*option_specs),
	.defaults = &defaults,
};

#define MODE(rw)     (1u << (rw))
#define SWAP_MODES   (MODE(RW_SWAPOUT) | MODE(RW_SWAPIN) | MODE(RW_SWAP))
#define STEP_MODES   (MODE(RW_STEP) | MODE(RW_PARAMS))
#define TENSOR_MODES (SWAP_MODES | STEP_MODES)
#define FIO_MODES    (MODE(RW_RANDRW + 1) - MODE(RW_READ))

/* Options that do something in some modes alone. */
static const struct {
	const char *name;
	unsigned modes;
} limited[] = {
	{"model", TENSOR_MODES},
	{"tensors", TENSOR_MODES},
	{"tensor-size", TENSOR_MODES},
	{"scale", TENSOR_MODES},
	{"pool", TENSOR_MODES},
	{"rank", TENSOR_MODES},
	{"trace", TENSOR_MODES},
	{"max-in-cpu", STEP_MODES},
	{"compute-us", MODE(RW_PARAMS)},
	{"threads", MODE(RW_STEP)},
	{"rate", SWAP_MODES | FIO_MODES},
	{"rwmixread", MODE(RW_RW) | MODE(RW_RANDRW)},
	{"rwmixwrite", MODE(RW_RW) | MODE(RW_RANDRW)},
	{"filename", FIO_MODES},
	{"io-size", FIO_MODES},
};

static const struct option_spec *own_spec(const char *name)
{
	const struct option_spec *spec = options_find(&bench_command, name);

	assert(spec && "an option of this command");
	return spec;
}

bool bench_option_given(const struct options_given *given, const char *name)
{
	return given->text[own_spec(name) - bench_command.options] != NULL;
}

/* "swapout, swapin and swap". */
static void name_modes(unsigned modes, char *text, size_t nbytes)
{
	*text = '\0';
	for (unsigned rw = 0; rw_names[rw]; rw++) {
		unsigned later = modes >> rw >> 1;

		if (modes & MODE(rw))
			snprintf(text + strlen(text), nbytes - strlen(text), "%s%s", rw_names[rw],
				 !later		       ? ""
				 : later & (later - 1) ? ", "
						       : " and ");
	}
}

/* Says "WHERE: " or the dashes of what is typed, and then the rest. */
#define SAY(where, format, ...)                                                                    \
	say("%s%s" format, (where) ? (where) : "", (where) ? ": " : "--", __VA_ARGS__)

static int check_modes(const struct bench_options *options, const struct options_given *own,
		       const char *where)
{
	char modes[128];

	for (size_t i = 0; i < sizeof(limited) / sizeof(*limited); i++) {
		if (!bench_option_given(own, limited[i].name) ||
		    limited[i].modes & MODE(options->rw))
			continue;
		name_modes(limited[i].modes, modes, sizeof(modes));
		SAY(where, "%s does nothing with rw=%s: it is for %s", limited[i].name,
		    rw_names[options->rw], modes);
		return -EINVAL;
	}
	return 0;
}

/* Blocks go to the drive as they are; tensors are laid out and cut by the library. */
static int check_mix(const struct bench_options *options, const struct option_mix *mix,
		     const char *where)
{
	for (unsigned i = 0; i < mix->n; i++)
		if (mix->nbytes[i] % SECTOR) {
			SAY(where,
			    "bssplit: with rw=%s blocks are multiples of %u bytes, and %llu is not",
			    rw_names[options->rw], SECTOR, (unsigned long long)mix->nbytes[i]);
			return -EINVAL;
		}
	return 0;
}

static bool mixes_equal(const struct option_mix *a, const struct option_mix *b)
{
	return a->n == b->n && !memcmp(a->nbytes, b->nbytes, a->n * sizeof(*a->nbytes)) &&
	       !memcmp(a->percent, b->percent, a->n * sizeof(*a->percent));
}

static int check_blocks(const struct bench_options *options, const char *where)
{
	const struct option_mix *mixes = options->bssplit;
	bool bs_differs = options->bs[NVS_READ] != options->bs[NVS_WRITE];
	int rc;

	if (is_fio_mode(options->rw)) {
		rc = check_mix(options, &mixes[NVS_READ], where);
		return rc ? rc : check_mix(options, &mixes[NVS_WRITE], where);
	}
	if (!bs_differs && mixes_equal(&mixes[NVS_READ], &mixes[NVS_WRITE]))
		return 0;
	SAY(where,
	    "%s: one for reads and one for writes is for fio's modes: with rw=%s give one for both",
	    bs_differs ? "bs" : "bssplit", rw_names[options->rw]);
	return -EINVAL;
}

static int check_suffix(const struct bench_options *options, const char *where)
{
	unsigned long long suffix = options->rw_suffix;
	const char *name = rw_names[options->rw];

	if (!suffix || fio_mode_is_random(options->rw))
		return 0;
	if (!is_fio_mode(options->rw))
		SAY(where, "rw=%s:%llu: only fio's modes have something behind a colon", name,
		    suffix);
	else if (suffix % SECTOR)
		SAY(where, "rw=%s:%llu: what is left out between blocks is a multiple of %u bytes",
		    name, suffix, SECTOR);
	else
		return 0;
	return -EINVAL;
}

/* Of what there is nothing yet there is no share either, and fio takes none. */
static int check_size(const struct bench_options *options, const char *where)
{
	if (!options->size.percent || options->rw == RW_READ || options->rw == RW_RANDREAD)
		return 0;
	SAY(where,
	    "size=%llu%%: a share is of a file that is there, which read and randread take: with "
	    "rw=%s give bytes%s",
	    (unsigned long long)options->size.percent, rw_names[options->rw],
	    is_fio_mode(options->rw) ? "" : ", or scale");
	return -EINVAL;
}

static int check_needs(const struct bench_options *options, const struct options_given *own,
		       const char *where)
{
	if (options->filenames.n > 1) {
		SAY(where, "%s",
		    "filename: a job has one file: give each file a job of its own (\\: is a : in "
		    "a name)");
		return -EINVAL;
	}
	if (options->time_based && !options->runtime_ms) {
		SAY(where, "%s", "time-based needs runtime, for how long to go on");
		return -EINVAL;
	}
	if (bench_option_given(own, "rounds") && !options->compare) {
		SAY(where, "%s", "rounds does nothing without compare");
		return -EINVAL;
	}
	if (options->compare && options->formats == 1u << FORMAT_TERSE) {
		SAY(where, "%s", "compare has no terse form: output-format may be normal or json");
		return -EINVAL;
	}
	if (options->compare && options->status_interval_ms) {
		SAY(where, "%s", "compare has no status between: leave out status-interval");
		return -EINVAL;
	}
	if (!options->direct && bench_option_given(own, "direct") && !is_fio_mode(options->rw)) {
		SAY(where,
		    "direct=0 is for fio's modes: with rw=%s a store is direct wherever its file "
		    "system can be",
		    rw_names[options->rw]);
		return -EINVAL;
	}
	return 0;
}

void bench_options_init(struct bench_options *options)
{
	*options = defaults;
}

void bench_options_settle(struct bench_options *options, const struct options_given *given)
{
	if (!bench_option_given(given, "loops") &&
	    (options->rw == RW_STEP || options->rw == RW_PARAMS))
		options->loops = STEPS;
	options->filename = options->filenames.n ? options->filenames.items[0] : NULL;
	if (bench_option_given(given, "rwmixwrite"))
		options->rwmixread = 100 - options->rwmixwrite;
	if (options->bssplit[NVS_READ].n && !options->size.nbytes && !is_fio_mode(options->rw))
		options->size.nbytes = 1u << 30;
}

int bench_options_check(const struct bench_options *options, const struct options_given *own,
			const char *where)
{
	int rc = options_check_exclusions(&bench_command, own, where);

	if (!rc)
		rc = check_modes(options, own, where);
	if (!rc)
		rc = check_blocks(options, where);
	if (!rc)
		rc = check_size(options, where);
	if (!rc)
		rc = check_suffix(options, where);
	return rc ? rc : check_needs(options, own, where);
}

void bench_blocks(const struct bench_options *options, uint64_t block_size,
		  struct option_mix blocks[2])
{
	assert(is_fio_mode(options->rw));
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		uint64_t nbytes = options->bs[d] ? options->bs[d] : block_size;

		blocks[d] = options->bssplit[d];
		if (!blocks[d].n)
			blocks[d] =
				(struct option_mix){.nbytes = {nbytes}, .percent = {100}, .n = 1};
		if (!fio_mode_moves(options->rw, d))
			blocks[d].n = 0;
	}
}

bool bench_blocks_alike(const struct option_mix blocks[2])
{
	unsigned n = blocks[NVS_READ].n + blocks[NVS_WRITE].n;

	return n == 1 || (n == 2 && blocks[NVS_READ].n == 1 &&
			  blocks[NVS_READ].nbytes[0] == blocks[NVS_WRITE].nbytes[0]);
}
