/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the command line and job files to a plan: which setting overrides which, which jobs run
 * together and are reported together, and errors about keys that bench does not have.
 */

#include "cli/jobs/jobs.h"
#include "cli/options/said.h"
#include "support/inject.h"

#define ARGUMENTS_MAX 16

static struct bench_plan plan; /* the last one */

static const char *write_file(const char *name, const char *text)
{
	const char *path = path_in(temp_directory(), name);

	write_text(path, text);
	return path;
}

/* `typed` is split at blanks; a % in it stands for the next file. */
static int plan_of(const char *typed, const char *const *files)
{
	static char line[1024];
	char *argv[ARGUMENTS_MAX + 2] = {(char *)(uintptr_t) "bench"}, *next = line;
	int argc = 1;

	snprintf(line, sizeof(line), "%s", typed);
	while (*typed && next && argc <= ARGUMENTS_MAX) {
		argv[argc] = strsep(&next, " ");
		if (!strcmp(argv[argc], "%"))
			argv[argc] = (char *)(uintptr_t)*files++;
		argc++;
	}
	jobs_free(&plan);
	return HEARD(jobs_plan(&plan, argc, argv));
}

/* Plans one job file, with the options `typed` before its name, and with rw=swap where neither
 * names a mode. */
static int plan_text(const char *typed, const char *text)
{
	const char *files[] = {write_file("x.ini", text)};
	char line[512];

	snprintf(line, sizeof(line), "%s%s%s%%", typed, *typed ? " " : "",
		 strstr(text, "rw=") || strstr(typed, "--rw") ? "" : "--rw swap ");
	return plan_of(line, files);
}

static void plan_file(const char *typed, const char *text)
{
	if (plan_text(typed, text))
		fail_msg("%s%s", text, said);
}

static void assert_file_refused(const char *typed, const char *text, const char *why)
{
	assert_int_equal(plan_text(typed, text), -EINVAL);
	assert_says(said, why);
	assert_null(plan.jobs);
}

static void assert_typed_refused(const char *typed, const char *why)
{
	assert_int_equal(plan_of(typed, NULL), -EINVAL);
	assert_says(said, why);
}

/* Prints "name/stage/groupid/clone ..." of all jobs. */
static const char *order_of(void)
{
	static char text[4096];
	size_t n = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < plan.n; i++) {
		const struct bench_job *job = &plan.jobs[i];

		assert_int_equal(job->index, i);
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s/%u/%u/%u", i ? " " : "",
				      job->name, job->stage, job->groupid, job->clone);
	}
	return text;
}

static void assert_order(const char *typed, const char *text, const char *order)
{
	plan_file(typed, text);
	assert_string_equal(order_of(), order);
	assert_string_equal(said, "");
}

/* ---- The jobs ---- */

TEST(without_a_file_the_command_line_is_the_job)
{
	assert_int_equal(plan_of("--rw swapin --numjobs 3 --seed 7 --output x", NULL), 0);
	assert_string_equal(order_of(), "swapin/0/0/0 swapin/0/0/1 swapin/0/0/2");
	assert_int_equal(plan.jobs[0].options.rw, RW_SWAPIN);
	assert_int_equal(plan.jobs[2].options.seed, 9);
	assert_string_equal(plan.run.output, "x");
	assert_true(bench_option_given(&plan.given, "seed"));
	assert_true(bench_option_given(&plan.jobs[1].given, "seed"));
	assert_int_equal(plan_of("", NULL), 0);
	assert_string_equal(order_of(), "swap/0/0/0");
	assert_int_equal(plan_of("--help", NULL), OPTIONS_HELP);
	assert_typed_refused("--compute-us 5", "compute-us has no effect with rw=swap");
	assert_typed_refused("--section a", "--section needs a job file");
	assert_typed_refused("--stonewall", "stonewall");
}

TEST(stages_and_groups_are_counted_as_fio_counts_them)
{
	assert_order("", "[a]\n[b]\n[a]\n", "a/0/0/0 b/0/0/0 a/0/0/0");
	assert_order("", "[a]\n[b]\nstonewall\n[c]\nnew_group\n[d]\nstonewall=1\n",
		     "a/0/0/0 b/1/1/0 c/1/2/0 d/2/3/0");
	/* The first job waits for no other, and clones do not wait for each other. */
	assert_order("", "[global]\nstonewall\n[a]\nnumjobs=2\n[b]\n[c]\nstonewall=0\n",
		     "a/0/0/0 a/0/0/1 b/1/1/0 c/1/1/0");
	assert_order("", "[a]\nnew_group\nnumjobs=2\n[b]\nnew_group\nstonewall\n",
		     "a/0/0/0 a/0/0/1 b/1/1/0");
	assert_order("", "[one job]\n", "one job/0/0/0");
	/* Jobs of a stage have their own stores. */
	plan_file("", "[a]\nnumjobs=2\n[b]\n[c]\nstonewall\n[d]\n");
	for (unsigned i = 0; i < plan.n; i++)
		assert_int_equal(plan.jobs[i].rank, i < 3 ? i : i - 3);
}

TEST(files_run_one_after_the_other)
{
	const char *files[] = {
		write_file("x.ini", "[global]\nbs=64k\nrw=swapin\n[a]\n[b]\n"),
		write_file("y.ini", "[c]\nrw=swap\n[global]\nbs=128k\nrw=swap\n[d]\n")};
	static const uint64_t bs[] = {64 << 10, 64 << 10, 0, 128 << 10};
	assert_int_equal(plan_of("% %", files), 0);
	assert_string_equal(order_of(), "a/0/0/0 b/0/0/0 c/1/1/0 d/1/1/0");
	/* [global] of the first file ends with that file. */
	for (unsigned i = 0; i < COUNT(bs); i++)
		assert_int_equal(plan.jobs[i].options.bs, bs[i]);
}

TEST(sections_are_chosen_by_name)
{
	assert_order("--section b", "[a]\nno_key\n[b]\nstonewall\n[c]\n[b]\n", "b/0/0/0 b/0/0/0");
	assert_order("--section c --section a", "[a]\n[b]\nstonewall\n[c]\nstonewall\n",
		     "a/0/0/0 c/1/1/0");
	assert_file_refused("--section d", "[a]\n[global]\nbs=4k\n", "--section d: no job file");
	assert_file_refused("--section global", "[a]\n[global]\n", "--section global: no job");
}

TEST(jobs_and_their_names_have_bounds)
{
	static const char longest[] =
		"[123456789012345678901234567890123456789012345678901234567890123]\n";
	char text[128];
	plan_file("", "[a]\nnumjobs=255\n[b]\n");
	assert_int_equal(plan.n, JOBS_MAX);
	assert_file_refused("", "[a]\nnumjobs=255\n[b]\nnumjobs=2\n",
			    "x.ini:3: 257 jobs are too many; a run has at most 256");
	assert_file_refused("", "[global]\nbs=4k\n", "x.ini has no job section");
	assert_file_refused("", "", "x.ini has no job section");
	plan_file("", longest);
	assert_int_equal(strlen(plan.jobs[0].name), JOB_NAME_MAX);
	snprintf(text, sizeof(text), "[a]\n[+%s", longest + 1);
	assert_file_refused("", text, "x.ini:2: the job's name is too long: at most 63 bytes");
}

/* ---- Their options ---- */

TEST(sections_override_global_and_the_command_line_overrides_both)
{
	plan_file("--iodepth 64 --directory /typed",
		  "[global]\nbs=64k\niodepth=4\nrw=swapin\ndirectory=/a:/b\n"
		  "[first]\nbs=128k\niodepth=8\ndirectory=/c\n"
		  "[global]\nbs=256k\nloops=5\n"
		  "[second]\nrw=swapout\ndescription=the second\n");
	const struct bench_options *first = &plan.jobs[0].options, *second = &plan.jobs[1].options;

	assert_true(first->bs == 128 << 10 && second->bs == 256 << 10);
	assert_true(first->iodepth == 64 && second->iodepth == 64);
	assert_true(first->rw == RW_SWAPIN && second->rw == RW_SWAPOUT);
	assert_true(first->loops == 1 && second->loops == 5);
	assert_string_equal(second->description, "the second");
	assert_int_equal(first->nvme_path.n, 1);
	assert_string_equal(first->nvme_path.items[0], "/typed");
	assert_false(bench_option_given(&plan.jobs[0].given, "loops"));
	assert_true(bench_option_given(&plan.jobs[1].given, "loops"));
	plan_file("", "[global]\ndirectory=/a:/b\n[first]\ndirectory=/c\n[second]\n");
	assert_int_equal(plan.jobs[0].options.nvme_path.n, 1);
	assert_int_equal(plan.jobs[1].options.nvme_path.n, 2);
}

/* A model in [global] does not conflict with a job that makes up tensors. */
TEST(nearer_options_clear_conflicting_ones)
{
	plan_file("", "[global]\nmodel=m.json\n[a]\ntensor-size=1m\n[b]\n");
	assert_null(plan.jobs[0].options.model);
	assert_false(bench_option_given(&plan.jobs[0].given, "model"));
	assert_string_equal(plan.jobs[1].options.model, "m.json");
	plan_file("--model n.json", "[a]\ntensor-size=1m\n");
	assert_string_equal(plan.jobs[0].options.model, "n.json");
	assert_false(bench_option_given(&plan.jobs[0].given, "tensor-size"));
}

TEST(options_a_mode_ignores_are_refused_only_in_its_section)
{
	plan_file("--max-in-cpu 7", "[global]\ncompute_us=5\n[a]\nrw=swap\n[b]\nrw=params\n");
	assert_int_equal(plan.jobs[1].options.compute_us, 5);
	assert_int_equal(plan.jobs[1].options.loops, 3);
	assert_int_equal(plan.jobs[0].options.loops, 1);
	assert_file_refused("", "\n[a]\nrw=swapin\ncompute_us=5\n",
			    "x.ini:2: compute-us has no effect with rw=swapin");
}

TEST(defaults_depend_on_given_options)
{
	static const struct {
		const char *typed;
		unsigned rw;
		uint64_t loops, size;
	} cases[] = {{"--rw swap", RW_SWAP, 1, 0},
		     {"--rw step", RW_STEP, 3, 0},
		     {"--rw step --loops 1", RW_STEP, 1, 0},
		     {"--readwrite randread", RW_RANDREAD, 1, 1 << 30},
		     {"--rw read --runtime 0 --rate 0", RW_READ, 1, 1 << 30}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct bench_options *job;
		assert_int_equal(plan_of(cases[i].typed, NULL), 0);
		job = &plan.jobs[0].options;
		assert_int_equal(job->rw, cases[i].rw);
		assert_int_equal(job->loops, cases[i].loops);
		assert_true(!cases[i].size || job->size == cases[i].size);
		assert_true(job->numjobs == 1 && job->direct && !job->runtime_ms && !job->rate);
		assert_int_equal(plan.run.formats, 1u << FORMAT_NORMAL);
	}
	assert_typed_refused("--rw read --runtime 0 --time-based", "time-based needs runtime");
	assert_typed_refused("--rw randread --model m",
			     "model has no effect with rw=randread: it is for "
			     "swapout, swapin, swap, step and params");
}

TEST(options_of_the_run_are_only_in_global)
{
	plan_file("--eta never",
		  "[global]\noutput-format=json\nstatus_interval=2s\neta=always\n[a]\n");
	assert_int_equal(plan.run.formats, 1u << FORMAT_JSON);
	assert_int_equal(plan.run.status_interval_ms, 2000);
	assert_int_equal(plan.run.eta, ETA_NEVER);
	assert_true(bench_option_given(&plan.given, "status-interval"));
	assert_file_refused(
		"", "[a]\noutput_format=json\n",
		"x.ini:2: output_format applies to the whole run: put it into [global] or "
		"give --output-format");
	assert_file_refused("", "[global]\ndry_run\n[a]\n",
			    "x.ini:2: dry_run is only a command-line");
}

TEST(a_wrong_value_is_reported_with_its_line)
{
	assert_file_refused("", "[a]\n\nbs=5001\n", "x.ini:3: bs=5001");
	assert_file_refused("", "[a]\nbs=4k,8k\n", "x.ini:2: bs=4k,8k: allowed is a size from ");
	assert_file_refused("", "[a]\nbs\n", "x.ini:2: bs");
	assert_file_refused("", "[a]\nrw=swapp\n", "did you mean swap");
	assert_file_refused("", "[a]\nbs=${NVSWAP_UNSET}\n", "x.ini:2: ${NVSWAP_UNSET} is not set");
}

/* Each value would be an error by itself. */
TEST(a_value_that_the_command_line_overrides_may_be_wrong)
{
	plan_file("--bs 64k --directory /x --rw swapin --output-format json",
		  "[global]\ndirectory=${NVSWAP_UNSET}\noutput-format=none\n"
		  "[a]\nbs=5001\nrw=nothing\nrw\n");
	assert_int_equal(plan.jobs[0].options.bs, 64 << 10);
	assert_string_equal(plan.jobs[0].options.nvme_path.items[0], "/x");
	assert_int_equal(plan.jobs[0].options.rw, RW_SWAPIN);
	assert_file_refused("--bs 64k", "[a]\niodepth=x\n", "x.ini:2: iodepth=x");
}

TEST(an_unknown_key_is_an_error_with_the_nearest)
{
	assert_file_refused("", "[a]\niodpeth=4\n",
			    "x.ini:2: bench has no key iodpeth; did you mean iodepth?");
	assert_file_refused("", "[a]\nquite_another\n",
			    "x.ini:2: bench has no key quite_another; if it is fio's, use fio\n");
	assert_file_refused("", "[a]\nbs=4k\nBS=4k\n", "x.ini:3: bench has no key BS");
}

/* ---- fio's files ---- */

TEST(a_load_of_fios_alone_is_refused_by_key_and_line)
{
	static const char *const keys[] = {"filename=x",  "bsrange=4k-8k", "thinktime=5",
					   "norandommap", "fsync=1",	   "nrfiles=4",
					   "rate_iops=1"};
	static const char *const modes[] = {"rw",	 "readwrite",  "randrw",
					    "trimwrite", "randread:8", "write:64k"};
	char file[128], why[128];

	for (unsigned i = 0; i < COUNT(keys); i++) {
		snprintf(file, sizeof(file), "[a]\nbs=4k\n%s\n", keys[i]);
		snprintf(why, sizeof(why), "x.ini:3: bench has no key %.*s",
			 (int)strcspn(keys[i], "="), keys[i]);
		assert_file_refused("", file, why);
		assert_says(said, "fio");
		assert_ptr_equal(strchr(said, '\n') + 1, said + strlen(said));
	}
	for (unsigned i = 0; i < COUNT(modes); i++) {
		snprintf(file, sizeof(file), "[a]\nrw=%s\n", modes[i]);
		snprintf(why, sizeof(why), "x.ini:2: rw=%s: only fio has that: use fio", modes[i]);
		assert_file_refused("", file, why);
		assert_null(strstr(said, "did you mean"));
	}
	/* Keys that files for both need are accepted. */
	assert_order("",
		     "[global]\nthread\nrandrepeat=0\ninvalidate=1\nunlink=1\n"
		     "direct=1\nsize=1g\n[a]\nrw=randread\nbs=4k\niodepth=1\nioengine=libaio\n",
		     "a/0/0/0");
	assert_file_refused("", "[a]\ndirect=0\n", "x.ini:2: direct=0: only 1 is supported");
	assert_file_refused("", "[a]\nverify=crc32c\n", "x.ini:2: verify=crc32c: allowed are");
}

TEST(a_file_says_what_each_would_take_differently)
{
	static const char *const lines[] = {"rw=write\n", "bs=4k\n",	"iodepth=1\n",
					    "size=1m\n",  "direct=1\n", "ioengine=auto\n"};
	const char *files[1];
	for (unsigned without = 0; without <= COUNT(lines); without++) {
		char text[128] = "[a]\n", why[64];

		for (unsigned i = 0; i < COUNT(lines); i++)
			if (i != without)
				strcat(text, lines[i]);
		files[0] = write_file("x.ini", text);
		if (without == COUNT(lines)) {
			assert_int_equal(plan_of("%", files), 0);
			continue;
		}
		assert_int_equal(plan_of("%", files), -EINVAL);
		snprintf(why, sizeof(why),
			 "x.ini:1: job a has no %.*s: ", (int)strcspn(lines[without], "="),
			 lines[without]);
		assert_says(said, why);
	}
	/* Of tensors the defaults are bench's alone, and so is a configuration. */
	files[0] = write_file("x.ini", "[a]\nrw=swap\n[b]\nrw=read\nconfig=c.json\n");
	assert_int_equal(plan_of("%", files), 0);
}

TEST(failed_allocations_are_reported)
{
	const char *files[] = {write_file("x.ini", "[global]\nrw=swap\n[a]\n[b]\nnumjobs=2\n"
						   "directory=/x:/y\n")};
	uint64_t failed = 1;

	for (uint64_t n = 1; failed; n++) {
		struct inject_held before = inject_held(), after;
		int rc;

		inject_fail(INJECT_MEMORY, n, 1, ENOMEM);
		rc = plan_of("--directory /x:/z %", files);
		inject_stop(&failed);
		if (!rc == !!failed || rc > 0 || !rc != !*said)
			fail_msg("call %" PRIu64 ", %s: %d, \"%s\"", n, inject_failed_call(), rc,
				 said);
		jobs_free(&plan);
		after = inject_held();
		assert_int_equal(after.blocks, before.blocks);
	}
}

static int end_plan(void **state)
{
	jobs_free(&plan);
	return cleanup(state);
}

EACH_TEST(NULL, end_plan)
