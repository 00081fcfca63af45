/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap tune`: checks the drive, fills a file, searches, and reports the choice. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/modes/modes.h"
#include "cli/tune/tune.h"

#define MIB		 (1u << 20)
#define GIB		 (1024.0 * MIB)
#define REFERENCE_NS	 UINT64_C(150000000)
#define REFERENCE_NS_MIN UINT64_C(10000000)

#define FIELD(name) offsetof(struct tune_options, name)

static const char *const objective_aliases[] = {"rw", NULL};

static const struct option_spec option_specs[] = {
	{"objective", "WHAT", OPTION_CHOICE, FIELD(objective), .choices = tune_objectives,
	 .aliases = objective_aliases,
	 .help = "what to tune for: swap, half reads and half writes (the default), or "
		 "reads or writes alone"},
	{"max-latency", "TIME", OPTION_DURATION, FIELD(max_latency_ms), .min = 1, .max = 60000,
	 .help = "choose only settings that complete 99 % of their I/Os within this time, "
		 "such as 10ms"},
	{"time", "TIME", OPTION_DURATION, FIELD(time_ms), .min = 1000, .max = 86400000,
	 .help = "how long it may take, filling the file included (60s)"},
	{"working-set", "SIZE", OPTION_SIZE, FIELD(working_set), .min = 64u << 20,
	 .max = 1ull << 50,
	 .help = "size of the file it works on: 1g, or a quarter of the free space or of "
		 "--max-writes if that is less. To see past the write cache of a drive, "
		 "give more than that holds"},
	{"max-writes", "SIZE", OPTION_SIZE, FIELD(max_writes), .min = 64u << 20, .max = 1ull << 50,
	 .help = "write no more than this to the drive, filling the file included (32g)"},
	{"tolerance", "PERCENT", OPTION_PERCENT, FIELD(tolerance),
	 .help = "settings slower than the fastest by no more than this are as good, and "
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
	 .help = "write the choice into this DeepSpeed configuration, keeping every other "
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
		"Finds the block size, queue depth, workers and engine with which the drive under "
		"a directory is fast, by measuring, and prints them as the aio block of a "
		"DeepSpeed configuration. Works on a temporary file in the directory.",
	.notes =
		"The normal output is the aio block, with the table of what was tried on standard "
		"error; json has all of it in one object. Sizes are in bytes or with k, m, g, t or "
		"p, of 1024; times in seconds or with ms, s, m, h or d. The exit status is 0 with "
		"a choice; 1 with the reason on standard error otherwise; 2 for bad usage.",
	.operand = "DIR",
	.options = option_specs,
	.noptions = COUNT_OF(option_specs),
	.defaults = &defaults,
};

int tune_options_parse(struct tune_options *options, int argc, char **argv)
{
	struct options_given given;
	int status;

	*options = defaults;
	status = options_parse(&tune_command, argc, argv, options, &given);
	if (status)
		return status;
	if (given.noperands != 1)
		return REFUSE(-EINVAL,
			      "tune takes one directory, on the drive to tune for, but got %u",
			      given.noperands);
	if (options->block_size_max && options->block_size_min > options->block_size_max)
		return REFUSE(-EINVAL, "--block-size-min is above --block-size-max");
	options->directory = given.operands[0];
	return 0;
}

static uint64_t read_clock(void *arg)
{
	(void)arg;
	return clock_ns();
}

static void show_progress(void *arg, const char *phase, double share)
{
	const struct tune_workload *workload = arg;
	char rate[32];

	if (isatty(STDERR_FILENO) != 1)
		return;
	snprintf(rate, sizeof(rate), "%6.2f GB/s", workload->rate / 1e9);
	progress_draw(phase, share, rate, -1);
}

/* The rate of writes, by rounds that are equal before and after the search, unless their length is
 * 0 or no writes are left. The median of three, which ignores a disturbed one. */
static int measure_reference(struct tuning *tuning, uint64_t for_ns, double *rate)
{
	const struct tune_point point = {tuning->space.ioengines[0], MIB, 8, 1, false, true};
	double rates[3];

	for (int i = 0; i < 3 && for_ns; i++) {
		struct tune_sample sample;
		int rc = tune_workload_measure(&tuning->workload, &point, TUNE_WRITE, for_ns,
					       &sample, &tuning->error);

		if (rc)
			return rc == -EDQUOT ? 0 : rc;
		rates[i] = sample.bytes_per_s;
	}
	if (for_ns)
		*rate = median(rates, 3);
	return 0;
}

static int measure_all(struct tuning *tuning)
{
	const struct tune_options *options = &tuning->options;
	struct tune_workload *workload = &tuning->workload;
	struct tune_drive *drive = &tuning->drive;
	const struct tune_meter meter = {.measure = tune_workload_measure,
					 .now_ns = read_clock,
					 .written = &workload->written,
					 .progress = show_progress,
					 .arg = workload};
	uint64_t time_ns = options->time_ms * 1000000, asked = workload->working_set, cost, spent;
	uint64_t length = min_u64(time_ns / 60, REFERENCE_NS), filled;
	int rc = tune_fill(workload, tuning->space.ioengines[0], drive, time_ns / 3, time_ns,
			   &tuning->error);

	if (!rc && workload->working_set < asked)
		say("warning: a third of the time was enough to write only %llu MiB of %llu, so "
		    "tuning works on these: give a longer --time or a smaller --working-set",
		    (unsigned long long)(workload->working_set / MIB),
		    (unsigned long long)(asked / MIB));
	/* The limit of bytes in flight depends on the size of the filled part. */
	if (!rc)
		rc = tune_space_make(options, &drive->machine, workload->working_set,
				     &tuning->space, &tuning->error);
	if (rc)
		return rc;
	filled = workload->written;
	/* A round of the reference takes a small part of the time and of the write limit, or there
	 * is none. The writes of the second one, after the search, are reserved. */
	cost = 3 * (uint64_t)(drive->fill * 2e-9 * (double)length) + 96 * MIB;
	if (options->objective == TUNE_READ || length < REFERENCE_NS_MIN ||
	    cost > (options->max_writes - workload->written) / 16)
		length = 0;
	else
		workload->writes_max = options->max_writes - cost;
	rc = measure_reference(tuning, length, &drive->reference[0]);
	if (!rc) {
		/* The second reference needs its warm-up, too. On a busy machine that took longer
		 * to prepare, the search still gets half of the time. */
		spent = clock_ns() - tuning->began_ns + 6 * length;
		tuning->rules.budget_ns = spent < time_ns / 2 ? time_ns - spent
							      : time_ns - time_ns / 2;
		tuning->rules.writes_max = workload->writes_max - workload->written;
		rc = tune_search(&tuning->space, &tuning->rules, &meter, &tuning->outcome,
				 &tuning->error);
		fputs(progress_erase(), stderr);
	}
	workload->writes_max = options->max_writes;
	rc = rc ?: measure_reference(tuning, length, &drive->reference[1]);
	tune_judge_writes(drive, workload->written - filled);
	return rc;
}

static int make_and_measure(struct tuning *tuning)
{
	const struct tune_options *options = &tuning->options;
	struct tune_workload *workload = &tuning->workload;
	double fills = (double)workload->working_set / GIB;
	int rc;

	workload->fd = make_scratch_file(options->directory, workload->working_set, &tuning->error);
	if (workload->fd < 0)
		return workload->fd;
	if (options->objective == TUNE_READ)
		say("writes %.2f GiB to %s, the file that it reads", fills, options->directory);
	else
		say("writes at most %.2f GiB to %s: %.2f GiB to fill a file, the rest to measure "
		    "(--max-writes)",
		    (double)options->max_writes / GIB, options->directory, fills);
	rc = memory_room_check(workload->memory_bytes, NULL, "tune", "stop other programs",
			       &tuning->error);
	if (!rc)
		workload->memory = huge_map(workload->memory_bytes, NULL);
	if (!rc && !workload->memory)
		rc = -ENOMEM;
	if (!rc) {
		pattern_block(1, 0, 0, 0, workload->memory, workload->memory_bytes);
		rc = measure_all(tuning);
	}
	close(workload->fd);
	return rc;
}

static int write_results(struct tuning *tuning, struct output *output)
{
	const struct tune_options *options = &tuning->options;
	const struct tune_point *point = &tuning->outcome.chosen->point;
	int status = output_begin(output);
	enum nvs_ioengine named;

	tuning->elapsed_ns = clock_ns() - tuning->began_ns;
	if (!status)
		tune_json(output->file, tuning, options->report.format == REPORT_JSON);
	if (options->report.format != REPORT_JSON)
		tune_table(stderr, tuning);
	else if (tuning->drive.slows_down)
		say("warning: %s", tuning->drive.slows_text);
	say("%s", tuning->outcome.why);
	if (!tuning->outcome.certain)
		say("not certain: %s", tuning->outcome.unsure);
	if (!options->apply)
		return status;
	if (tune_apply(options->apply, point, tune_names_ioengine(tuning), &named, &tuning->error))
		return REFUSE(STATUS_FAILED, "%s", tuning->error.text);
	if (named != NVS_IOENGINE_AUTO && named != point->ioengine)
		say("%s named the I/O engine %s, but the choice is for %s, which it names now",
		    options->apply, nvs_ioengine_name(named), nvs_ioengine_name(point->ioengine));
	return REFUSE(status, "%s has the choice", options->apply);
}

int cmd_tune(int argc, char **argv)
{
	static struct tuning tuning;
	const struct tune_options *options = &tuning.options;
	struct tune_drive *drive = &tuning.drive;
	struct tune_workload *workload = &tuning.workload;
	struct nvs_error *error = &tuning.error;
	struct output output;
	enum nvs_ioengine named;
	/* Until the process ends, since the parser moves operands. */
	char **typed = calloc((size_t)argc, sizeof(*typed));
	int status = 0, closed, rc;

	if (!typed)
		return STATUS_FAILED;
	memcpy(typed, argv, (size_t)argc * sizeof(*typed));
	tuning = (struct tuning){.argc = argc,
				 .argv = typed,
				 .began_ns = clock_ns(),
				 .error = {.size = sizeof(tuning.error)}};
	rc = tune_options_parse(&tuning.options, argc, argv);
	if (rc)
		return rc == OPTIONS_HELP ? options_help(&tune_command) : STATUS_USAGE;
	/* The result must not overwrite the configuration. */
	if (is_same_file(options->apply, options->report.output))
		return REFUSE(STATUS_USAGE, "--apply and --output are one file, %s: give two",
			      options->report.output);
	rc = tune_look(options->directory, drive, error);
	rc = rc ?: tune_choose_working_set(options, drive, &workload->working_set, error);
	if (!rc)
		rc = tune_space_make(options, &drive->machine, workload->working_set, &tuning.space,
				     error);
	if (!rc && options->apply)
		rc = tune_apply(options->apply, NULL, false, &named, error);
	if (!rc && output_open(&output, options->report.output))
		return STATUS_FAILED;
	if (rc)
		return REFUSE(STATUS_FAILED, "%s", error->text);
	tuning.rules = (struct tune_rules){.objective = (enum tune_objective)options->objective,
					   .tolerance = options->tolerance / 100,
					   .latency_max_ns = options->max_latency_ms * 1000000,
					   .seed = 1};
	workload->now_ns = read_clock;
	workload->stopped = stop_signal;
	workload->memory_bytes = tune_memory_bytes(&drive->machine);
	workload->writes_max = options->max_writes;
	stop_catch_signals(NULL);
	rc = make_and_measure(&tuning);
	if (!rc) {
		status = write_results(&tuning, &output);
	} else if (rc == -EINTR && stop_signal()) {
		say("ended by a signal; nothing is left behind");
		status = 128 + stop_signal();
	} else {
		say("%s", error->text[0] ? error->text : nvs_strerror(rc));
		status = STATUS_FAILED;
	}
	closed = output_close(&output);
	if (!status && !closed && options->report.format == REPORT_JSON)
		say_page(options->report.output);
	tune_outcome_free(&tuning.outcome);
	return status ? status : closed;
}
