/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap tune`: checks its options and the drive, makes and fills a file, searches, and reports
 * the choice.
 */
#include "cli/tune/tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/progress.h"
#include "cli/settings.h"
#include "cli/stop.h"
#include "cli/tune/bounds.h"
#include "cli/tune/drive.h"
#include "cli/tune/scratch_file.h"

#define MIB		 (1u << 20)
#define REFERENCE_NS	 UINT64_C(150000000)
#define REFERENCE_NS_MIN UINT64_C(10000000)

struct tuning {
	const struct tune_options *options;
	const struct options_given *given;
	uint64_t began_ns;
	struct tune_drive drive;
	struct tune_space space;
	struct tune_rules rules;
	struct tune_work work;
	struct scratch_file file;
	struct tune_outcome outcome;
	struct nvs_error error;
};

static uint64_t spent_ns(const struct tuning *tuning)
{
	return clock_ns() - tuning->began_ns;
}

/* ---- Callbacks of the search ---- */

static int open_aio(void *arg, const struct nvs_config *config, struct nvs_aio **aio,
		    struct nvs_error *error)
{
	(void)arg;
	return nvs_aio_open(aio, config, error);
}

static uint64_t clock_of(void *arg)
{
	(void)arg;
	return clock_ns();
}

static uint64_t written_of(void *arg)
{
	return ((struct tune_work *)arg)->workload.written;
}

static bool asked_to_end(void)
{
	return stop_signal();
}

/* Called once a round, which is rare. */
static void show_progress(void *arg, const char *phase, double share)
{
	const struct tune_work *work = arg;
	char rate[32];

	if (isatty(STDERR_FILENO) != 1)
		return;
	snprintf(rate, sizeof(rate), "%6.2f GB/s", work->rate / 1e9);
	progress_draw(phase, share, rate, -1);
}

/* Random bytes, which no drive can compress. */
static void *make_memory(uint64_t nbytes)
{
	uint64_t x = 0x9e3779b97f4a7c15u, *words = huge_map(nbytes, NULL);

	for (uint64_t i = 0; words && i < nbytes / sizeof(*words); i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		words[i] = x;
	}
	return words;
}

/* ---- The run ---- */

/* Measures the drive with the reference's load, if `for_ns` is not 0 and writes are left. */
static int reference(struct tuning *tuning, uint64_t for_ns, double *rate)
{
	int rc = for_ns ? tune_reference(&tuning->work, for_ns, rate, &tuning->error) : 0;

	return rc == -EDQUOT ? 0 : rc;
}

/* Searches in the time that is left but for `kept_ns`. */
static int search(struct tuning *tuning, uint64_t kept_ns)
{
	const struct tune_meter meter = {.measure = tune_measure,
					 .now_ns = clock_of,
					 .written = written_of,
					 .progress = show_progress,
					 .arg = &tuning->work};
	const struct tune_workload *workload = &tuning->work.workload;
	uint64_t time_ns = tuning->options->time_ms * 1000000, spent = spent_ns(tuning) + kept_ns;
	int rc;

	/* On a busy machine that took longer to prepare, the search still gets half of the time. */
	tuning->rules.budget_ns = spent < time_ns / 2 ? time_ns - spent : time_ns - time_ns / 2;
	tuning->rules.writes_max = workload->writes_max - workload->written;
	rc = tune_search(&tuning->space, &tuning->rules, &meter, &tuning->outcome, &tuning->error);
	fputs(progress_erase(), stderr);
	return rc;
}

/* Fills the file, and searches between two measurements of the reference. */
static int measure_all(struct tuning *tuning)
{
	const struct tune_options *options = tuning->options;
	struct tune_workload *workload = &tuning->work.workload;
	uint64_t time_ns = options->time_ms * 1000000, asked = tuning->drive.working_set;
	uint64_t length = min_u64(time_ns / 60, REFERENCE_NS), cost;
	double last = 0;
	int rc = tune_fill(&tuning->work, time_ns / 3, time_ns, &tuning->error);

	if (!rc && tuning->drive.working_set < asked)
		say("warning: a third of the time was enough to write only %llu MiB of %llu, so "
		    "tuning works on these: give a longer --time or a smaller --working-set",
		    (unsigned long long)(tuning->drive.working_set / MIB),
		    (unsigned long long)(asked / MIB));
	/* The limit of bytes in flight depends on the size of the filled part. */
	if (!rc)
		rc = tune_space_make(options, &tuning->drive, &tuning->space, &tuning->error);
	if (rc)
		return rc;
	/* A round of the reference takes a small part of the time and of the write limit, or there
	 * is none. The writes of the second one, after the search, are reserved. */
	cost = 3 * (uint64_t)(tuning->work.fill_first * 2e-9 * (double)length) + 96 * MIB;
	if (tuning->rules.objective == TUNE_READ || length < REFERENCE_NS_MIN ||
	    cost > (options->max_writes - workload->written) / 16)
		length = 0;
	else
		workload->writes_max = options->max_writes - cost;
	rc = reference(tuning, length, &tuning->work.reference_first);
	/* The second reference needs its warm-up, too. */
	if (!rc)
		rc = search(tuning, 6 * length);
	workload->writes_max = options->max_writes;
	if (!rc)
		rc = reference(tuning, length, &last);
	tune_judge_writes(&tuning->work, last);
	return rc;
}

/* The exit status for the result of the run. */
static int status_of(const struct tuning *tuning, int rc)
{
	if (!rc)
		return 0;
	if (rc == -EINTR && stop_signal()) {
		say("ended by a signal; nothing is left behind");
		return 128 + stop_signal();
	}
	say("%s", tuning->error.text[0] ? tuning->error.text : nvs_strerror(rc));
	return STATUS_FAILED;
}

/* Makes the file and the memory, and measures. */
static int run(struct tuning *tuning)
{
	const struct tune_options *options = tuning->options;
	struct tune_workload *workload = &tuning->work.workload;
	double gib = 1024.0 * MIB, fills = (double)tuning->drive.working_set / gib;
	int rc;

	tuning->rules = (struct tune_rules){.objective = (enum tune_objective)options->objective,
					    .tolerance = options->tolerance / 100,
					    .latency_max_ns = options->max_latency_ms * 1000000,
					    .seed = options->seed};
	tuning->work = (struct tune_work){
		.workload = {.open = open_aio,
			     .now_ns = clock_of,
			     .working_set = tuning->drive.working_set,
			     .memory_bytes = tune_memory_bytes(&tuning->drive),
			     .writes_max = options->max_writes,
			     .stopped = asked_to_end},
		.drive = &tuning->drive,
		.ioengine = tuning->space.ioengines[0],
	};
	rc = scratch_file_make(&tuning->file, options->directory, tuning->drive.working_set,
			       &tuning->error);
	if (rc)
		return status_of(tuning, rc);
	if (tuning->rules.objective == TUNE_READ)
		say("writes %.2f GiB to %s, the file that it reads", fills, options->directory);
	else
		say("writes at most %.2f GiB to %s: %.2f GiB to fill a file, the rest to measure "
		    "(--max-writes)",
		    (double)options->max_writes / gib, options->directory, fills);
	workload->path = tuning->file.path;
	/* Allocated after the fork of the guard, which must not share this memory. */
	rc = memory_room_check(workload->memory_bytes, NULL, "tune", "stop other programs",
			       &tuning->error);
	if (!rc) {
		workload->memory = make_memory(workload->memory_bytes);
		rc = workload->memory ? measure_all(tuning) : -ENOMEM;
	}
	scratch_file_remove(&tuning->file);
	return status_of(tuning, rc);
}

/* ---- Results ---- */

static int apply(const struct tune_result *result)
{
	const char *path = result->options->apply;
	const struct tune_point *point = &result->outcome->chosen->point;
	enum nvs_ioengine named;
	struct nvs_error error = {.size = sizeof(error)};

	if (tune_apply(path, point, tune_names_ioengine(result), &named, &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (named != NVS_IOENGINE_AUTO && named != point->ioengine)
		say("%s named the I/O engine %s, but the choice is for %s, which it names now",
		    path, nvs_ioengine_name(named), nvs_ioengine_name(point->ioengine));
	say("%s has the choice", path);
	return 0;
}

static int write_results(struct tuning *tuning, struct output *output)
{
	const struct tune_options *options = tuning->options;
	const struct tune_result result = {.options = options,
					   .given = tuning->given,
					   .space = &tuning->space,
					   .rules = &tuning->rules,
					   .drive = &tuning->drive,
					   .outcome = &tuning->outcome,
					   .elapsed_ns = spent_ns(tuning),
					   .finished_unix_s = (uint64_t)time(NULL)};
	int status = output_begin(output);

	if (!status && options->format)
		tune_json(output->file, &result);
	else if (!status)
		tune_block(output->file, &result);
	if (!options->format)
		tune_table(stderr, &result);
	else if (tuning->drive.slows_down)
		say("warning: %s", tuning->drive.slows_text);
	say("%s", tuning->outcome.why);
	if (!tuning->outcome.certain)
		say("not certain: %s", tuning->outcome.unsure);
	if (options->apply && apply(&result))
		status = STATUS_FAILED;
	return status;
}

/* ---- Checks before the run ---- */

static bool is_same_file(const char *a, const char *b)
{
	struct stat of_a, of_b;

	if (!a || !b)
		return false;
	if (stat(a, &of_a) || stat(b, &of_b))
		return !strcmp(a, b);
	/* Several results may be written to one device. */
	return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

static int tune(struct tuning *tuning)
{
	const struct tune_options *options = tuning->options;
	enum nvs_ioengine named;
	struct output output;
	int status, closed, rc;

	/* The result must not overwrite the configuration. */
	if (is_same_file(options->apply, options->output)) {
		say("--apply and --output are one file, %s: give two", options->output);
		return STATUS_USAGE;
	}
	rc = tune_look(options, &tuning->drive, &tuning->error);
	if (!rc)
		rc = tune_choose_working_set(options, &tuning->drive, &tuning->error);
	if (!rc)
		rc = tune_space_make(options, &tuning->drive, &tuning->space, &tuning->error);
	if (!rc && options->apply)
		rc = tune_apply(options->apply, NULL, false, &named, &tuning->error);
	if (rc)
		return status_of(tuning, rc);
	if (output_open(&output, options->output))
		return STATUS_FAILED;
	stop_catch_signals();
	status = run(tuning);
	if (!status)
		status = write_results(tuning, &output);
	closed = output_close(&output);
	if (!status && !closed && options->format)
		say_page(options->output);
	tune_outcome_free(&tuning->outcome);
	return status ? status : closed;
}

int cmd_tune(int argc, char **argv)
{
	static struct tuning tuning;
	struct tune_options options;
	struct options_given given;
	int rc = tune_options_parse(&options, &given, argc, argv);

	if (rc)
		return rc == OPTIONS_HELP ? options_help(&tune_command) : STATUS_USAGE;
	tuning = (struct tuning){.options = &options,
				 .given = &given,
				 .began_ns = clock_ns(),
				 .error = {.size = sizeof(tuning.error)}};
	return tune(&tuning);
}
