/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap replay`: its options, and the plan of one job that they make.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/commands.h"
#include "cli/jobs/bench.h"

#define FIELD(name) offsetof(struct bench_options, name)

static const char *const pace_names[] = {[PACE_RECORDED] = "recorded", [PACE_MAX] = "max", NULL};
static const char *const directory[] = {"directory", NULL};

static const struct option_spec option_specs[] = {
	{"nvme-path", "DIR", OPTION_LIST, FIELD(nvme_path), .aliases = directory,
	 .help = "a directory or a raw block device for the store; several, with : between or "
		 "given again, are striped over. The store is removed at the end"},
	{"config", "FILE", OPTION_STRING, FIELD(config),
	 .help = "a DeepSpeed JSON configuration, whole or only its blocks"},
	{"pace", "PACE", OPTION_CHOICE, FIELD(pace), .choices = pace_names,
	 .help = "recorded: compute as long between calls as the recorded program did (the "
		 "default). max: make each call as soon as the one before has returned"},
	{"loops", "N", OPTION_COUNT, FIELD(loops), .min = 1, .max = 1000000000,
	 .help = "times through the accesses (1)"},
	{"bs", "SIZE", OPTION_SIZE, FIELD(bs), .min = NVS_BLOCK_SIZE_MIN, .max = NVS_BLOCK_SIZE_MAX,
	 .multiple = NVS_BLOCK_SIZE_MIN, .help = "aio.block_size: bytes in one I/O"},
	{"iodepth", "N", OPTION_COUNT, FIELD(iodepth), .min = 1, .max = NVS_QUEUE_DEPTH_MAX,
	 .help = "aio.queue_depth: I/Os in flight on each worker"},
	{"thread-count", "N", OPTION_COUNT, FIELD(thread_count), .min = 1,
	 .max = NVS_THREAD_COUNT_MAX, .help = "aio.thread_count: workers"},
	{"ioengine", "ENGINE", OPTION_CHOICE, FIELD(ioengine), .choices = ioengine_names,
	 .help = "the I/O engine; auto takes the first of the others that works here (auto)"},
	{"pool", "SIZE", OPTION_SIZE, FIELD(pool), .min = 4096, .max = 1ull << 50,
	 .help = "bytes of the pool. Without it and --config: that of the recorded run; of a "
		 "list, 256m, or a quarter more than is ever in use if that is more"},
	{"verify", NULL, OPTION_FLAG, FIELD(verify),
	 .help = "compare every tensor that is read with what was written"},
	{"seed", "N", OPTION_COUNT, FIELD(seed), .max = UINT64_MAX,
	 .help = "of the tensors' contents (1)"},
	{"rank", "N", OPTION_COUNT, FIELD(rank), .max = UINT32_MAX,
	 .help = "which store under the directory: rank<N> (0)"},
	{"dry-run", NULL, OPTION_FLAG, FIELD(dry_run),
	 .help = "print the space and bytes of the replay, and run nothing"},
	{"trace", "FILE", OPTION_STRING, FIELD(trace),
	 .help = "a timeline of the replay, which can be replayed in turn"},
	{"eta", "WHEN", OPTION_CHOICE, FIELD(eta), .choices = bench_eta_names,
	 .help = "the line of progress: auto, on a terminal alone (the default)"},
	{"output-format", "FORMAT", OPTION_CHOICES, FIELD(formats), .choices = bench_format_names,
	 .help = "the report as text, as JSON, or as JSON with histograms of latencies, as "
		 "nvswap bench has it; several with commas (normal)"},
	{"output", "FILE", OPTION_STRING, FIELD(output),
	 .help = "where the report goes (standard output)"},
};

static const struct bench_options defaults = {
	.rw = RW_REPLAY,
	.formats = 1u << FORMAT_NORMAL,
	.pace = PACE_RECORDED,
	.scale = 1,
	.loops = 1,
	.numjobs = 1,
	.seed = 1,
};

const struct command_spec replay_command = {
	.name = "replay",
	.summary = "Makes the calls on tensors that a recorded run made, in the same order, on\n"
		   "another drive or with other settings, and measures them. TRACE is a timeline\n"
		   "that nvswap bench --trace or the library wrote, or a text file of accesses.",
	.notes = "A text file has an access on each line: swapin NAME [BYTES], swapout NAME\n"
		 "[BYTES], release NAME, prefetch NAME [BYTES], compute TIME, step. BYTES is\n"
		 "needed the first time.\n"
		 "The exit status is 0 only if every byte was moved and, with --verify, compared\n"
		 "equal; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.operand = "TRACE",
	.options = option_specs,
	.noptions = COUNT_OF(option_specs),
	.defaults = &defaults,
};

/* The options given to replay, indexed by bench's table, which jobs use. */
static struct options_given given_to_bench(const struct options_given *typed)
{
	struct options_given given = {0};

	for (unsigned i = 0; i < replay_command.noptions; i++) {
		const struct option_spec *spec = options_find(&bench_command,
							      replay_command.options[i].name);

		if (spec)
			given.text[spec - bench_command.options] = typed->text[i];
	}
	return given;
}

/* The output, trace or log that would overwrite the file being replayed, or NULL. */
static const char *written_over(const struct bench_options *options)
{
	const char *written[] = {options->trace, options->output};
	struct stat read, other;

	for (unsigned i = 0; i < 2; i++)
		if (written[i] && !stat(options->replay, &read) && !stat(written[i], &other) &&
		    read.st_dev == other.st_dev && read.st_ino == other.st_ino)
			return written[i];
	return NULL;
}

static int parse(int argc, char **argv, struct bench_options *options, struct options_given *given)
{
	const char *over;
	int rc = options_parse(&replay_command, argc, argv, options, given);

	if (rc)
		return rc;
	if (given->noperands != 1) {
		say("replay takes one TRACE, and %u are given", given->noperands);
		return -EINVAL;
	}
	options->replay = given->operands[0];
	over = written_over(options);
	if (over)
		say("%s would be written over the accesses that are read from it", over);
	return over ? -EINVAL : 0;
}

int cmd_replay(int argc, char **argv)
{
	struct bench_plan plan = {.run = defaults, .n = 1};
	struct options_given typed;
	int rc = parse(argc, argv, &plan.run, &typed);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&replay_command) : STATUS_USAGE;
	plan.jobs = calloc(1, sizeof(*plan.jobs));
	if (!plan.jobs) {
		say("out of memory");
		return STATUS_FAILED;
	}
	plan.given = given_to_bench(&typed);
	plan.jobs[0].options = plan.run;
	plan.jobs[0].given = plan.given;
	strcpy(plan.jobs[0].name, replay_command.name);
	return bench_run_plan(&plan);
}
