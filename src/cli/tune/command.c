/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap tune`: looks at what there is, makes and fills a file, searches, and tells. The search is
 * in tune_search.c, what it measures in tune_load.c; here is what a search needs and what is made
 * of its outcome.
 */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "commands.h"
#include "huge_map.h"
#include "progress.h"
#include "stop.h"
#include "tune_bounds.h"
#include "tune_drive.h"
#include "tune_words.h"

#define REFERENCE_NS   UINT64_C(150000000)
#define BLOCK_TEXT_MAX 512

struct tuning {
	const struct tune_options *options;
	const struct options_given *given;
	uint64_t began_ns;
	struct tune_drive drive;
	struct tune_space space;
	struct tune_rules rules;
	struct tune_work work;
	struct tune_file file;
	struct tune_outcome outcome;
	struct nvs_error error;
};

/* ---- What a round needs ---- */

static int open_aio(void *arg, const struct nvs_aio_config *config, struct nvs_aio **aio,
		    struct nvs_error *error)
{
	(void)arg;
	return nvs_aio_open(aio, config, NULL, error);
}

static uint64_t clock_of(void *arg)
{
	(void)arg;
	return now_ns();
}

static bool asked_to_end(void)
{
	return stop_signal();
}

/* After each round, so not often. The bar is of the time, which the search may not need all of. */
static void show_progress(void *arg, const char *phase, uint64_t spent_ns, uint64_t budget_ns)
{
	const struct tune_work *work = arg;
	uint64_t left_ns = spent_ns < budget_ns ? budget_ns - spent_ns : 0;
	char rate[32];

	if (isatty(STDERR_FILENO) != 1)
		return;
	snprintf(rate, sizeof(rate), "%6.2f GB/s", work->rate / 1e9);
	progress_draw(phase, 1 - (double)left_ns / (double)budget_ns, rate, (double)left_ns / 1e9);
}

/* Bytes that no drive can make shorter, on huge pages where the machine has them. */
static void *make_memory(uint64_t nbytes)
{
	uint64_t x = 0x9e3779b97f4a7c15u, *words = huge_map(nbytes);

	for (uint64_t i = 0; words && i < nbytes / sizeof(*words); i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		words[i] = x;
	}
	return words;
}

/* ---- The run ---- */

static uint64_t spent_ns(const struct tuning *tuning)
{
	return now_ns() - tuning->began_ns;
}

static int fill(struct tuning *tuning)
{
	uint64_t time_ns = tuning->options->time_ms * 1000000, asked = tuning->drive.working_set;
	int rc = tune_fill(&tuning->work, time_ns / 3, time_ns, &tuning->error);

	if (!rc && tuning->drive.working_set < asked)
		say("warning: a third of the time was enough to write %llu MiB and not %llu, so "
		    "less is worked on: give a longer --time, or a smaller --working-set",
		    (unsigned long long)(tuning->drive.working_set >> 20),
		    (unsigned long long)(asked >> 20));
	return rc;
}

/* How long a round of the reference is: a little of the time in all. */
static uint64_t reference_ns(const struct tuning *tuning)
{
	uint64_t share = tuning->options->time_ms * 1000000 / 60;

	return share < REFERENCE_NS ? share : REFERENCE_NS;
}

static int search(struct tuning *tuning)
{
	const struct tune_meter meter = {.measure = tune_measure,
					 .now_ns = clock_of,
					 .progress = show_progress,
					 .arg = &tuning->work};
	/* Six rounds of reference take their warm-up too, and so does ending. */
	uint64_t time_ns = tuning->options->time_ms * 1000000, kept_ns = 6 * reference_ns(tuning);
	uint64_t spent = spent_ns(tuning);
	int rc;

	tuning->rules.budget_ns = spent + kept_ns < time_ns ? time_ns - spent - kept_ns : 1;
	rc = tune_search(&tuning->space, &tuning->rules, &meter, &tuning->outcome, &tuning->error);
	fputs(progress_erase(), stderr);
	return rc;
}

static int measure_all(struct tuning *tuning)
{
	double last = 0;
	int rc = fill(tuning);

	/* What may be in flight follows from what is there to work on. */
	if (!rc)
		rc = tune_space_make(tuning->options, &tuning->drive, &tuning->space,
				     &tuning->error);
	if (!rc)
		rc = tune_reference(&tuning->work, reference_ns(tuning),
				    &tuning->work.reference_first, &tuning->error);
	if (!rc)
		rc = search(tuning);
	if (!rc)
		rc = tune_reference(&tuning->work, reference_ns(tuning), &last, &tuning->error);
	if (!rc)
		tune_judge_writes(&tuning->work, last);
	return rc;
}

/* The status to exit with. */
static int said(const struct tuning *tuning, int rc)
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

static int measure_on_file(struct tuning *tuning)
{
	int rc = tune_file_make(&tuning->file, tuning->options->directory,
				tuning->drive.working_set, &tuning->error);

	if (rc)
		return rc;
	tuning->work.load.path = tuning->file.path;
	/* After the guard has been forked, which would share it. */
	tuning->work.load.memory = make_memory(tuning->work.load.memory_bytes);
	rc = tuning->work.load.memory ? measure_all(tuning) : -ENOMEM;
	tune_file_remove(&tuning->file);
	return rc;
}

static int run(struct tuning *tuning)
{
	const struct tune_options *options = tuning->options;
	struct tune_load *load = &tuning->work.load;

	tuning->rules = (struct tune_rules){.objective = (enum tune_objective)options->objective,
					    .tolerance = options->tolerance / 100,
					    .exhaustive = options->exhaustive,
					    .map = options->report,
					    .seed = options->seed};
	*load = (struct tune_load){.open = open_aio,
				   .now_ns = clock_of,
				   .working_set = tuning->drive.working_set,
				   .memory_bytes = tune_memory_bytes(&tuning->drive),
				   .stopped = asked_to_end};
	tuning->work.drive = &tuning->drive;
	tuning->work.ioengine = tuning->space.ioengines[0];
	return said(tuning, measure_on_file(tuning));
}

/* ---- What is told ---- */

static int write_output(struct output *output, const struct tune_result *result)
{
	char text[BLOCK_TEXT_MAX];
	int status = output_begin(output);

	if (status)
		return status;
	if (result->options->format)
		return tune_json(output->file, result);
	tune_block_text(result, text, sizeof(text));
	fputs(text, output->file);
	return 0;
}

/* The engine that a configuration names; AUTO where it can't be read. */
static enum nvs_ioengine named_ioengine(const char *path)
{
	enum nvs_ioengine ioengine = NVS_IOENGINE_AUTO;
	struct nvs_config config;

	nvs_config_init(&config);
	if (!nvs_config_load(&config, path, NULL))
		ioengine = config.aio.ioengine;
	nvs_config_free(&config);
	return ioengine;
}

static int apply(const struct tune_result *result)
{
	const char *path = result->options->apply;
	const struct tune_point *point = &result->outcome->chosen->point;
	enum nvs_ioengine named = named_ioengine(path);
	struct nvs_error error;

	if (tune_apply(path, point, tune_names_ioengine(result), &error)) {
		say("%s", error.text);
		return STATUS_FAILED;
	}
	if (named != NVS_IOENGINE_AUTO && named != point->ioengine)
		say("%s named the I/O engine %s, for which the choice is not: it names %s now",
		    path, nvs_ioengine_name(named), nvs_ioengine_name(point->ioengine));
	say("%s has the choice", path);
	return 0;
}

static int report(const struct tune_result *result)
{
	struct nvs_error error;

	if (!tune_report_write(result->options->report, result, &error))
		return 0;
	say("%s", error.text);
	return STATUS_FAILED;
}

static int tell(struct tuning *tuning, struct output *output)
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
	int status = write_output(output, &result);

	if (!options->format)
		tune_table(stderr, &result);
	else if (tuning->drive.slows_down)
		say("warning: %s", tuning->drive.slows_text);
	say("%s", tuning->outcome.why);
	if (options->apply && apply(&result))
		status = STATUS_FAILED;
	if (options->report && report(&result))
		status = STATUS_FAILED;
	return status;
}

/* ---- What is looked at before ---- */

/* So that nobody waits a minute for what can't be written then. */
static int check_report(const char *path)
{
	bool is_new = access(path, F_OK) && errno == ENOENT;
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);

	if (fd < 0) {
		say("can't write the report to %s: %s", path, strerror(errno));
		return STATUS_FAILED;
	}
	close(fd);
	if (is_new)
		unlink(path);
	return 0;
}

static bool is_same_file(const char *a, const char *b)
{
	struct stat of_a, of_b;

	if (!a || !b)
		return false;
	if (stat(a, &of_a) || stat(b, &of_b))
		return !strcmp(a, b);
	/* Any number of results may go to one device. */
	return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* A configuration would be lost under a result. */
static int check_files_differ(const struct tune_options *options)
{
	const struct {
		const char *option, *path;
	} files[] = {{"--apply", options->apply},
		     {"--output", options->output},
		     {"--report", options->report}};

	for (size_t i = 0; i < 3; i++)
		for (size_t j = 0; j < i; j++)
			if (is_same_file(files[i].path, files[j].path)) {
				say("%s and %s are one file, %s: give two", files[j].option,
				    files[i].option, files[i].path);
				return STATUS_USAGE;
			}
	return 0;
}

static int look(struct tuning *tuning)
{
	const struct tune_options *options = tuning->options;
	int rc = tune_look(options, &tuning->drive, &tuning->error);

	if (!rc)
		rc = tune_choose_working_set(options, &tuning->drive, &tuning->error);
	if (!rc)
		rc = tune_space_make(options, &tuning->drive, &tuning->space, &tuning->error);
	if (!rc && options->apply)
		rc = tune_apply_check(options->apply, &tuning->error);
	if (rc)
		return said(tuning, rc);
	return options->report ? check_report(options->report) : 0;
}

static int tune(struct tuning *tuning)
{
	struct output output;
	int status = check_files_differ(tuning->options), closed;

	if (!status)
		status = look(tuning);
	if (status)
		return status;
	if (output_open(&output, tuning->options->output))
		return STATUS_FAILED;
	stop_catch_signals();
	status = run(tuning);
	if (!status)
		status = tell(tuning, &output);
	closed = output_close(&output);
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
	tuning = (struct tuning){.options = &options, .given = &given, .began_ns = now_ns()};
	return tune(&tuning);
}
