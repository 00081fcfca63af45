/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of `nvswap bench`: their table, and what must hold between them. Looks at no file.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "bench.h"
#include "commands.h"

#define STEPS	    3	 /* their least, mean and most are told */
#define THREADS_MAX 1024 /* as its key has it */
#define FIELD(name) offsetof(struct bench_options, name)

static const char *const rw_names[] = {"swapout", "swapin", "swap", "step", "params", NULL};
static const char *const ioengine_names[] = {[NVS_IOENGINE_AUTO] = "auto",
					     [NVS_IOENGINE_IO_URING] = "io_uring",
					     [NVS_IOENGINE_LIBAIO] = "libaio",
					     [NVS_IOENGINE_POSIX] = "posix",
					     [NVS_IOENGINE_COUNT] = NULL};
static const char *const format_names[] = {"normal", "json", NULL};
static const char *const not_with_model[] = {"tensors", "tensor-size", NULL};
static const char *const not_with_runtime[] = {"loops", NULL};
static const char *const not_with_scale[] = {"size-limit", NULL};

static const struct option_spec option_specs[] = {
	{"config", "FILE", OPTION_STRING, FIELD(config),
	 .help = "a DeepSpeed JSON configuration, whole or only its blocks"},
	{"nvme-path", "DIR", OPTION_LIST, FIELD(nvme_path),
	 .help = "where the store goes: a directory or a raw block device; give it\n"
		 "several times to stripe over several drives. The store is removed\n"
		 "at the end"},
	{"model", "FILE", OPTION_STRING, FIELD(model), .excludes = not_with_model,
	 .help = "a .safetensors file, whose tensors are the data, or a JSON file in the\n"
		 "form of its header, for the shapes alone"},
	{"tensors", "N", OPTION_COUNT, FIELD(tensors), .min = 1, .max = MODEL_TENSORS_MAX,
	 .help = "made-up tensors instead of a model (16)"},
	{"tensor-size", "SIZE", OPTION_SIZE, FIELD(tensor_size), .min = 1, .max = 1ull << 50,
	 .help = "bytes in each of them (64m); with --rw step, of its weights"},
	{"scale", "SHARE", OPTION_SHARE, FIELD(scale), .excludes = not_with_scale,
	 .help = "only the model's first tensors, up to this share of its bytes, such\n"
		 "as 0.25; at least one"},
	{"size-limit", "SIZE", OPTION_SIZE, FIELD(size_limit), .min = 1, .max = 1ull << 60,
	 .help = "only the model's first tensors, up to so many bytes; at least one"},
	{"rw", "MODE", OPTION_CHOICE, FIELD(rw), .choices = rw_names,
	 .help = "swapout writes the tensors, swapin reads them, swap reads, changes and\n"
		 "writes back. step: optimizer steps over state on the drive. params:\n"
		 "forward and backward over the layers (swap)"},
	{"loops", "N", OPTION_COUNT, FIELD(loops), .min = 1, .max = 1000000000,
	 .help = "times through the model (1); with --rw step or params, steps (3)"},
	{"runtime", "TIME", OPTION_DURATION, FIELD(runtime_ms), .min = 1, .max = 31536000000,
	 .excludes = not_with_runtime, .help = "instead of loops: go on for 30, 500ms, 5m, 1h"},
	{"ramp-loops", "N", OPTION_COUNT, FIELD(ramp_loops), .max = 1000000000,
	 .help = "times through the model, or steps, before the measuring begins (0)"},
	{"bs", "SIZE", OPTION_SIZE, FIELD(bs), .min = NVS_BLOCK_SIZE_MIN, .max = NVS_BLOCK_SIZE_MAX,
	 .multiple = 512, .help = "aio.block_size: bytes in one I/O"},
	{"iodepth", "N", OPTION_COUNT, FIELD(iodepth), .min = 1, .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "aio.queue_depth: I/Os in flight on each worker"},
	{"numjobs", "N", OPTION_COUNT, FIELD(numjobs), .min = 1, .max = NVS_THREAD_COUNT_MAX,
	 .help = "aio.thread_count: workers"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .help = "auto takes the first of the others that works here (auto)"},
	{"pool", "SIZE", OPTION_SIZE, FIELD(pool), .min = 4096, .max = 1ull << 50,
	 .help = "bytes of the pool, for buffer_count x buffer_size. Without it and\n"
		 "--config: 256m, or twice the longest tensor if that is more; with\n"
		 "--rw params three times the longest layer, with --rw step 256m. It\n"
		 "must hold the longest tensor, and with --rw params the longest layer.\n"
		 "With --rw step it sets sub_group_size too, and is beside --max-in-cpu"},
	{"max-in-cpu", "ELEMENTS", OPTION_COUNT, FIELD(max_in_cpu), .max = 1ull << 50,
	 .help = "--rw step: elements whose state stays in memory from step to step,\n"
		 "nvswap.optimizer_max_in_cpu. --rw params: offload_param.max_in_cpu.\n"
		 "No other mode"},
	{"compute-us", "N", OPTION_COUNT, FIELD(compute_us), .max = 3600000000,
	 .help = "microseconds that each visit of a layer computes (0); --rw params alone"},
	{"threads", "N", OPTION_COUNT, FIELD(threads), .min = 1, .max = THREADS_MAX,
	 .help = "nvswap.optimizer_threads: that compute; --rw step alone"},
	{"verify", NULL, OPTION_FLAG, FIELD(verify),
	 .help = "compare every byte that was swapped in with what was swapped out,\n"
		 "new contents each time; rates include that work, CPU per GiB does not.\n"
		 "With --rw step: compare a sample of each group, up to four runs of 4096\n"
		 "elements, with a scalar Adam in double, to within the rounding of fp32"},
	{"seed", "N", OPTION_COUNT, FIELD(seed), .max = UINT64_MAX,
	 .help = "of the data of tensors that no file gives, and of all data of --rw step,\n"
		 "which takes shapes alone from a model (1)"},
	{"trace", "FILE", OPTION_STRING, FIELD(trace),
	 .help = "a timeline of the run, for Perfetto or chrome://tracing"},
	{"output-format", "FORMAT", OPTION_CHOICE, FIELD(format), .choices = format_names,
	 .help = "a table, or JSON in the shape of fio's (normal)"},
	{"output", "FILE", OPTION_STRING, FIELD(output),
	 .help = "where the result goes (standard output)"},
};

const struct command_spec bench_command = {
	.name = "bench",
	.summary =
		"Swaps the tensors of a model between a pinned pool in host memory and NVMe,\n"
		"batch by batch, measures it, and verifies it if asked. Options override the\n"
		"configuration. Modes swapin and swap begin with a swap-out of all, which is not\n"
		"measured with the rest. Modes step and params run training steps instead, and\n"
		"begin with one that is not measured: it makes the optimizer's state, or records\n"
		"the order in which layers are used.",
	.notes = "Sizes are in bytes or with k, m, g or t, of 1024: 4096, 4k, 1M, 1g. Other "
		 "numbers\n"
		 "may be written as in the configuration: 1e9, 2.5e7.\n"
		 "The exit status is 0 only if every byte was moved and, with --verify, compared\n"
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.options = option_specs,
	.noptions = sizeof(option_specs) / sizeof(*option_specs),
};

/* Options that do something in some modes alone. */
static const struct {
	const char *name, *modes;
	unsigned rw[2];
} limited[] = {
	{"compute-us", "--rw params", {RW_PARAMS, RW_PARAMS}},
	{"threads", "--rw step", {RW_STEP, RW_STEP}},
	{"max-in-cpu", "--rw step and --rw params", {RW_STEP, RW_PARAMS}},
};

bool bench_option_given(const struct options_given *given, const char *name)
{
	for (unsigned i = 0; i < bench_command.noptions; i++)
		if (!strcmp(bench_command.options[i].name, name))
			return given->text[i] != NULL;
	assert(!"an option of this command");
	return false;
}

static int check_modes(const struct bench_options *options, const struct options_given *given)
{
	for (size_t i = 0; i < sizeof(limited) / sizeof(*limited); i++) {
		if (!bench_option_given(given, limited[i].name) ||
		    options->rw == limited[i].rw[0] || options->rw == limited[i].rw[1])
			continue;
		say("--%s does nothing with --rw %s: it is for %s", limited[i].name,
		    rw_names[options->rw], limited[i].modes);
		return -EINVAL;
	}
	return 0;
}

int bench_options_parse(struct bench_options *options, struct options_given *given, int argc,
			char **argv)
{
	*options = (struct bench_options){.tensors = 16,
					  .tensor_size = 64u << 20,
					  .rw = RW_SWAP,
					  .scale = 1,
					  .loops = 1,
					  .seed = 1};
	int status = options_parse(&bench_command, argc, argv, options, given);

	if (!status)
		status = check_modes(options, given);
	if (!bench_option_given(given, "loops") &&
	    (options->rw == RW_STEP || options->rw == RW_PARAMS))
		options->loops = STEPS;
	return status;
}
