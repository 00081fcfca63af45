/* SPDX-License-Identifier: Apache-2.0 */
/* The options of `nvswap tune`, and checks of their combinations. */
#include <errno.h>

#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/tune/tune.h"

#define FIELD(name) offsetof(struct tune_options, name)

const char *const tune_objectives[] = {
	[TUNE_SWAP] = "swap", [TUNE_READ] = "read", [TUNE_WRITE] = "write", NULL};
static const char *const objective_aliases[] = {"rw", NULL};

static const struct option_spec option_specs[] = {
	{"objective", "WHAT", OPTION_CHOICE, FIELD(objective), .choices = tune_objectives,
	 .aliases = objective_aliases,
	 .help = "what to tune for: swap, half reads and half writes (the default), or\n"
		 "reads or writes alone"},
	{"max-latency", "TIME", OPTION_DURATION, FIELD(max_latency_ms), .min = 1, .max = 60000,
	 .help = "choose only settings that complete 99 % of their I/Os within this time,\n"
		 "such as 10ms"},
	{"time", "TIME", OPTION_DURATION, FIELD(time_ms), .min = 1000, .max = 86400000,
	 .help = "how long it may take, filling the file included (60s)"},
	{"working-set", "SIZE", OPTION_SIZE, FIELD(working_set), .min = 64u << 20,
	 .max = 1ull << 50,
	 .help = "size of the file it works on: 1g, or a quarter of the free space or of\n"
		 "--max-writes if that is less. To see past the write cache of a drive,\n"
		 "give more than that holds"},
	{"max-writes", "SIZE", OPTION_SIZE, FIELD(max_writes), .min = 64u << 20, .max = 1ull << 50,
	 .help = "write no more than this to the drive, filling the file included (32g)"},
	{"tolerance", "PERCENT", OPTION_PERCENT, FIELD(tolerance),
	 .help = "settings slower than the fastest by no more than this are as good, and\n"
		 "of these the one with the least in flight is chosen (3)"},
	{"block-size-min", "SIZE", OPTION_SIZE, FIELD(block_size_min), .min = 4096,
	 .max = TUNE_BLOCK_SIZE_MAX, .multiple = 4096,
	 .help = "the smallest block tried (64k); each is a power of two"},
	{"block-size-max", "SIZE", OPTION_SIZE, FIELD(block_size_max), .min = 4096,
	 .max = TUNE_BLOCK_SIZE_MAX, .multiple = 4096, .help = "the largest block tried (16m)"},
	{"queue-depth-max", "N", OPTION_COUNT, FIELD(queue_depth_max), .min = 1,
	 .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "the deepest queue tried (256); each depth is a power of two"},
	{"thread-count-max", "N", OPTION_COUNT, FIELD(thread_count_max), .min = 1,
	 .max = NVS_THREAD_COUNT_MAX,
	 .help = "the most workers tried (processors, at most 8); a power of two each"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .help = "the only engine to try; auto: all that work here (auto)"},
	{"apply", "FILE", OPTION_STRING, FIELD(apply),
	 .help = "write the choice into this DeepSpeed configuration, keeping every other\n"
		 "byte of it"},
	REPORT_OPTIONS(FIELD(report)),
};

static const struct tune_options defaults = {
	.objective = TUNE_SWAP,
	.tolerance = 3,
	.time_ms = 60000,
	.max_writes = 32ull << 30,
};

const struct command_spec tune_command = {
	.name = "tune",
	.summary =
		"Finds the block size, queue depth, workers and engine with which the drive under\n"
		"a directory is fast, by measuring, and prints them as the aio block of a\n"
		"DeepSpeed configuration. Works on a temporary file in the directory.",
	.notes =
		"The normal output is the aio block, with the table of what was tried on standard\n"
		"error; json has all of it in one object.\n"
		"Sizes are in bytes or with k, m, g, t or p, of 1024; times in seconds or with "
		"ms,\n"
		"s, m, h or d.\n"
		"The exit status is 0 with a choice; 1 with the reason on standard error "
		"otherwise;\n"
		"2 for bad usage.",
	.operand = "DIR",
	.options = option_specs,
	.noptions = COUNT_OF(option_specs),
	.defaults = &defaults,
	.gone = (const struct option_gone[]){{"report", PAGE_BY_REPORT}, {NULL, NULL}},
};

int tune_options_parse(struct tune_options *options, int argc, char **argv)
{
	struct options_given given;
	int status;

	*options = defaults;
	status = options_parse(&tune_command, argc, argv, options, &given);
	if (status)
		return status;
	if (given.noperands != 1) {
		say("tune takes one directory, on the drive to tune for, but got %u",
		    given.noperands);
		return -EINVAL;
	}
	if (options->block_size_max && options->block_size_min > options->block_size_max) {
		say("--block-size-min is above --block-size-max");
		return -EINVAL;
	}
	options->directory = given.operands[0];
	return 0;
}
