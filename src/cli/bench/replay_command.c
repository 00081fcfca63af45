/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap replay`: its options, and the plan of one job that they make.
 */
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/commands.h"

static const char *const pace_names[] = {[PACE_RECORDED] = "recorded", [PACE_MAX] = "max", NULL};

/* Rows of bench's table, with other help where replay differs; "pace" is replay's own. */
static const struct {
	const char *name, *help;
} rows[] = {
	{"nvme-path", NULL},
	{"config", NULL},
	{"pace", "recorded: compute as long between calls as the recorded program did (the "
		 "default). max: make each call as soon as the one before has returned"},
	{"loops", "times through the accesses (1)"},
	{"bs", NULL},
	{"iodepth", NULL},
	{"thread-count", NULL},
	{"ioengine", NULL},
	{"pool", "bytes of the pool. Without it and --config: that of the recorded run; of a "
		 "list, 256m, or a quarter more than is ever in use if that is more"},
	{"verify", "compare every tensor that is read with what was written"},
	{"seed", "of the tensors' contents (1)"},
	{"dry-run", "print the space and bytes of the replay, and run nothing"},
	{"trace", "a timeline of the replay, which can be replayed in turn"},
	{"eta", NULL},
	{"output-format", NULL},
	{"output", NULL},
};
static struct option_spec option_specs[COUNT_OF(rows)];

static void __attribute__((constructor)) copy_rows_of_bench(void)
{
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		const struct option_spec *spec = options_find(&bench_command, rows[i].name);

		option_specs[i] = spec ? *spec
				       : (struct option_spec){rows[i].name, "PACE", OPTION_CHOICE,
							      offsetof(struct bench_options, pace),
							      .choices = pace_names};
		if (rows[i].help)
			option_specs[i].help = rows[i].help;
	}
}

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

int cmd_replay(int argc, char **argv)
{
	struct bench_plan plan = {.run = defaults, .n = 1};
	struct options_given typed;
	int rc = options_parse(&replay_command, argc, argv, &plan.run, &typed);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&replay_command) : STATUS_USAGE;
	if (typed.noperands != 1)
		return REFUSE(STATUS_USAGE, "replay takes one TRACE, and %u are given",
			      typed.noperands);
	plan.run.replay = typed.operands[0];
	for (unsigned i = 0; i < 2; i++) {
		const char *written = i ? plan.run.output : plan.run.trace;

		if (is_same_file(plan.run.replay, written))
			return REFUSE(STATUS_USAGE,
				      "%s would be written over the accesses that are read from it",
				      written);
	}
	plan.jobs = calloc(1, sizeof(*plan.jobs));
	if (!plan.jobs)
		return REFUSE(STATUS_FAILED, "out of memory");
	/* Jobs have the options by their index in bench's table. */
	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		const struct option_spec *spec = options_find(&bench_command, rows[i].name);

		if (spec)
			plan.given.text[spec - bench_command.options] = typed.text[i];
	}
	plan.jobs->options = plan.run;
	plan.jobs->given = plan.given;
	strcpy(plan.jobs->name, replay_command.name);
	return bench_run_plan(&plan);
}
