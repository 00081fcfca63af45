/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of `nvswap tune` as a file, from results made here. test_tune_report.py checks the
 * page's contents; it runs this program to write the page of a kind of result, or to list the
 * values that must be in it: `test_tune_report page KIND FILE`, `test_tune_report values KIND`.
 */
#include "support/support.h"

#include "cli/tune/tune.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB	   (UINT64_C(1) << 20)
#define TRIALS_MAX 2000

enum kind {
	SATURATING, /* levels off; the usual case */
	COLLAPSE,   /* writes collapse at depth, and the drive slows down */
	SLOW,	    /* tens of MB/s, nothing certain, depth 32 measured once */
	ONE,	    /* a single trial */
	NO_CHOICE,  /* measured, but ended before the choice */
	EMPTY,	    /* no measurement */
	ZERO,	    /* no byte moved */
	HUGE_VALUES,
	WIDE,	 /* as many values as a space can have */
	HOSTILE, /* texts that are markup unless escaped */
	KINDS
};

static const char *const kinds[KINDS] = {
	[SATURATING] = "saturating",
	[COLLAPSE] = "collapse",
	[SLOW] = "slow",
	[ONE] = "one",
	[NO_CHOICE] = "no-choice",
	[EMPTY] = "empty",
	[ZERO] = "zero",
	[HUGE_VALUES] = "huge-values",
	[WIDE] = "wide",
	[HOSTILE] = "hostile",
};

struct made {
	struct tune_options options;
	struct options_given given;
	char *operands[1];
	struct tune_space space;
	struct tune_rules rules;
	struct tune_drive drive;
	struct tune_outcome outcome;
	struct tune_result result;
	struct tune_trial trials[TRIALS_MAX];
	enum kind kind;
	double peak; /* bytes per second */
};

static struct made made;

static double rate_of(const struct tune_point *point, enum tune_objective objective)
{
	double in_flight = (double)point->block_size * point->queue_depth * point->thread_count;
	double peak = made.peak * (objective == TUNE_READ    ? 1.02
				   : objective == TUNE_WRITE ? 0.71
							     : 0.86);
	double offered = in_flight / (350e-6 + point->block_size / peak);
	double rate = peak * (1 - exp(-offered / peak * 0.8));

	if (peak <= 0)
		return 0;
	if (made.kind == COLLAPSE && objective != TUNE_READ)
		rate /= 1 + pow(in_flight / (48 * MIB), 2) * (objective == TUNE_WRITE ? 1.5 : 1);
	if (point->single_submit)
		rate *= 0.97;
	return rate * (1 - 0.004 * ((point->block_size >> 12) * 7 + point->queue_depth) / 1e4);
}

static struct tune_trial *add(enum tune_objective objective, uint32_t block_size,
			      uint32_t queue_depth, uint32_t thread_count)
{
	struct tune_trial *trial = &made.trials[made.outcome.n++];

	assert_true(made.outcome.n <= TRIALS_MAX);
	*trial = (struct tune_trial){
		.point = {.ioengine = NVS_IOENGINE_IO_URING,
			  .block_size = block_size,
			  .queue_depth = queue_depth,
			  .thread_count = thread_count,
			  .overlap_events = true},
		.objective = objective,
		.fate = objective == made.rules.objective ? TUNE_DROPPED : TUNE_ONLY_MAP,
		.rounds = 3,
	};
	trial->mean = rate_of(&trial->point, objective);
	trial->half_width = trial->mean * 0.012;
	trial->p50_ns = trial->mean > 0 ? (uint64_t)(1e9 * block_size * queue_depth * thread_count /
						     trial->mean)
					: 0;
	trial->p99_ns = trial->p50_ns * 17 / 10;
	trial->cpu_ms_per_gib = 20 + 400.0 * 65536 / block_size;
	return trial;
}

static struct tune_trial *find(enum tune_objective objective, uint32_t block_size,
			       uint32_t queue_depth, uint32_t thread_count)
{
	for (size_t i = 0; i < made.outcome.n; i++) {
		struct tune_trial *trial = &made.trials[i];

		if (trial->objective == objective && trial->point.block_size == block_size &&
		    trial->point.queue_depth == queue_depth &&
		    trial->point.thread_count == thread_count && !trial->point.single_submit)
			return trial;
	}
	return add(objective, block_size, queue_depth, thread_count);
}

static void final(struct tune_trial *trial, enum tune_fate fate)
{
	double best = made.outcome.fastest->mean;

	trial->fate = fate;
	trial->finalist = true;
	trial->rounds = 14;
	trial->half_width = trial->mean * 0.005;
	trial->to_best = best > 0 ? trial->mean / best : 1;
	trial->to_best_half_width = trial == made.outcome.fastest ? 0 : 0.004;
}

/* Fills cells of the map, leaving some out like a search, or measuring with other workers. */
static void fill_map(enum tune_objective objective, uint32_t thread_count)
{
	const struct tune_space *space = &made.space;
	struct tune_trial *trial;

	for (unsigned b = 0; b < space->nblock_sizes; b++)
		for (unsigned d = 0; d < space->nqueue_depths; d++) {
			uint64_t in_flight = (uint64_t)space->block_sizes[b] *
					     space->queue_depths[d] * thread_count;

			if (in_flight > space->in_flight_max ||
			    (objective != made.rules.objective && (b * 5 + d * 3) % 7 == 0))
				continue;
			trial = add(objective, space->block_sizes[b], space->queue_depths[d],
				    (b * 3 + d) % 17 == 3 ? 1 : thread_count);
			if (made.kind == SLOW && d == 5)
				trial->rounds = 1;
		}
}

static void choose(uint32_t block_size, uint32_t queue_depth, uint32_t thread_count)
{
	enum tune_objective objective = made.rules.objective;
	struct tune_trial *chosen = find(objective, block_size, queue_depth, thread_count);
	struct tune_trial *fastest = chosen, *other;

	for (size_t i = 0; i < made.outcome.n; i++)
		if (made.trials[i].objective == objective && made.trials[i].mean > fastest->mean)
			fastest = &made.trials[i];
	made.outcome.chosen = chosen;
	made.outcome.fastest = fastest;
	final(find(objective, block_size, queue_depth / 2, thread_count), TUNE_SLOWER);
	final(find(objective, block_size * 2, queue_depth, thread_count), TUNE_TIE);
	final(find(objective, block_size, queue_depth * 2, thread_count * 2), TUNE_TIE);
	other = add(objective, block_size, queue_depth, thread_count);
	other->point.single_submit = true;
	other->mean = rate_of(&other->point, objective);
	final(other, TUNE_SLOWER);
	final(fastest, TUNE_TIE);
	final(chosen, TUNE_CHOSEN);
	snprintf(made.outcome.why, sizeof(made.outcome.why),
		 "%" PRIu32 " bytes at depth %" PRIu32 " with %" PRIu32
		 " workers moves %.2f GB/s, %.1f %% of the fastest that was tried; of those "
		 "within 2 %% of it, it has the fewest bytes in flight.",
		 block_size, queue_depth, thread_count, chosen->mean / 1e9, chosen->to_best * 100);
}

static void make_space(unsigned nblock_sizes, unsigned nqueue_depths)
{
	struct tune_space *space = &made.space;

	for (unsigned i = 0; i < nblock_sizes; i++)
		space->block_sizes[i] = 1u << ((nblock_sizes > 9 ? 12 : 16) + i);
	for (unsigned i = 0; i < nqueue_depths; i++)
		space->queue_depths[i] = nqueue_depths > 13 ? i + 1 : 1u << i;
	for (unsigned i = 0; i < 4; i++)
		space->thread_counts[i] = 1u << i;
	space->nblock_sizes = nblock_sizes;
	space->nqueue_depths = nqueue_depths;
	space->nthread_counts = 4;
	space->ioengines[0] = NVS_IOENGINE_IO_URING;
	space->nioengines = 1;
	space->in_flight_max = 256 * MIB;
}

static void make_drive(void)
{
	struct nvs_machine_info *machine = &made.drive.machine;

	made.drive = (struct tune_drive){
		.machine = {.kernel = "6.18.0",
			    .cpus = 32,
			    .numa_nodes = 2,
			    .memory_bytes = 128 * 1024 * MIB,
			    .memlock_bytes = 8 * MIB,
			    .hugepage_bytes = 2 * MIB,
			    .transparent_hugepages = "madvise",
			    .auto_ioengine = NVS_IOENGINE_IO_URING},
		.path = {.path = "/mnt/nvme0/swap",
			 .filesystem = "ext4",
			 .direct = true,
			 .dio_mem_align = 512,
			 .dio_offset_align = 512,
			 .free_bytes = 812 * 1024 * MIB,
			 .total_bytes = 1788 * 1024 * MIB,
			 .device = "nvme0n1",
			 .model = "SAMSUNG MZQL21T9HCJR-00A07",
			 .scheduler = "none",
			 .max_io_bytes = 128 << 10,
			 .max_hw_io_bytes = 2048 << 10,
			 .nr_requests = 1023,
			 .max_segments = 127},
		.working_set = 1024 * MIB,
		.write_first = 5.1e9,
		.write_last = 4.95e9,
		.written_bytes = 61 * 1024 * MIB,
	};
	for (unsigned i = 0; i < NVS_IOENGINE_COUNT; i++)
		machine->ioengine[i].works = i != NVS_IOENGINE_LIBAIO;
	strcpy(machine->ioengine[NVS_IOENGINE_LIBAIO].reason, "io_setup: not permitted");
	strcpy(machine->ioengine[NVS_IOENGINE_AUTO].reason, "the first that works here");
}

static void make_slower(void)
{
	made.drive.slows_down = true;
	made.drive.write_last = 1.32e9;
	strcpy(made.drive.slows_text,
	       "the drive slows down as it is written: from 5.10 to 1.32 GB/s "
	       "within 61 GiB. Its cache is full: give --working-set 64g to tune for what "
	       "lies behind it, or trim the drive and wait.");
}

static void give(const char *name, const char *text)
{
	made.given.text[options_find(&tune_command, name) - tune_command.options] = text;
}

static void make_given(void)
{
	static char directory[] = "/mnt/nvme0/swap";

	made.options = (struct tune_options){.directory = directory, .time_ms = 60000};
	made.operands[0] = directory;
	made.given.operands = made.operands;
	made.given.noperands = 1;
	give("time", "1m");
	give("block-size-min", "128k");
	give("queue-depth-max", "64");
	give("ioengine", "io_uring");
	give("max-writes", "16g");
}

static void make_hostile(void)
{
	static char text[] = "</title><script>alert(\"1\")</script>&amp;'<img src=x>\n\x1b";

	give("report", "it's \\ here.html");
	made.operands[0] = text;
	made.options.directory = text;
	snprintf(made.drive.path.path, sizeof(made.drive.path.path), "/mnt/%s", text);
	snprintf(made.drive.path.model, sizeof(made.drive.path.model), "%.60s", text);
	snprintf(made.drive.path.device, sizeof(made.drive.path.device), "%.60s", text);
	snprintf(made.drive.path.filesystem, sizeof(made.drive.path.filesystem), "<b>ext4</b>");
	snprintf(made.drive.path.scheduler, sizeof(made.drive.path.scheduler), "<i>");
	snprintf(made.drive.machine.kernel, sizeof(made.drive.machine.kernel), "%.60s", text);
	snprintf(made.drive.machine.ioengine[NVS_IOENGINE_LIBAIO].reason, 192, "%s", text);
	snprintf(made.drive.slows_text, sizeof(made.drive.slows_text), "%s", text);
	snprintf(made.outcome.why, sizeof(made.outcome.why), "%s", text);
	made.drive.slows_down = true;
}

static void make_trials(void)
{
	static const enum tune_objective all[] = {TUNE_SWAP, TUNE_READ, TUNE_WRITE};

	if (made.kind == EMPTY)
		return;
	if (made.kind == ONE) {
		made.outcome.chosen = made.outcome.fastest = add(TUNE_SWAP, MIB, 8, 2);
		made.trials[0].fate = TUNE_CHOSEN;
		made.trials[0].rounds = 1;
		made.trials[0].half_width = INFINITY;
		strcpy(made.outcome.why, "Nothing else was measured.");
		return;
	}
	for (unsigned i = 0; i < COUNT(all); i++)
		fill_map(all[i], 2);
	if (made.kind != NO_CHOICE)
		choose(made.kind == COLLAPSE ? 256u << 10 : 1u << 20,
		       made.kind == COLLAPSE ? 16 : 8, 2);
}

static void make(enum kind kind)
{
	memset(&made, 0, sizeof(made));
	made.kind = kind;
	made.peak = kind == SLOW ? 61e6 : kind == ZERO ? 0 : kind == HUGE_VALUES ? 4e14 : 6.9e9;
	make_given();
	made.rules = (struct tune_rules){.objective = kind == COLLAPSE ? TUNE_WRITE : TUNE_SWAP,
					 .tolerance = 0.02,
					 .budget_ns = UINT64_C(60000000000),
					 .map = true,
					 .seed = 1};
	make_space(kind == WIDE ? 16 : 9, kind == WIDE ? 16 : 9);
	make_drive();
	made.outcome = (struct tune_outcome){.trials = made.trials, .certain = kind != SLOW};
	if (kind == SLOW)
		strcpy(made.outcome.unsure, "The rounds can't tell 3 finalists apart for sure.");
	make_trials();
	if (kind == COLLAPSE)
		make_slower();
	if (kind == HOSTILE)
		make_hostile();
	made.result = (struct tune_result){.options = &made.options,
					   .given = &made.given,
					   .space = &made.space,
					   .rules = &made.rules,
					   .drive = &made.drive,
					   .outcome = &made.outcome,
					   .elapsed_ns = UINT64_C(58211000000),
					   .finished_unix_s = 1790000000};
}

/* ---- The file ---- */

static char *contents(const char *path, size_t *nbytes)
{
	static char text[4 << 20];
	FILE *file = fopen(path, "re");

	assert_non_null(file);
	*nbytes = fread(text, 1, sizeof(text) - 1, file);
	assert_true(feof(file));
	fclose(file);
	text[*nbytes] = 0;
	return text;
}

static void a_report_replaces_a_longer_one(void **state)
{
	const char *path = path_in(temp_directory(), "report.html");
	struct nvs_error error = {.size = sizeof(error)};
	size_t long_bytes, nbytes;
	char *text;

	(void)state;
	make(WIDE);
	SUCCEEDS(tune_report_write(path, &made.result, &error), &error);
	contents(path, &long_bytes);
	make(EMPTY);
	SUCCEEDS(tune_report_write(path, &made.result, &error), &error);
	text = contents(path, &nbytes);
	assert_true(nbytes < long_bytes);
	assert_string_equal(text + nbytes - strlen("</html>\n"), "</html>\n");
}

static void the_same_result_gives_the_same_bytes(void **state)
{
	const char *path = path_in(temp_directory(), "report.html");
	struct nvs_error error = {.size = sizeof(error)};
	size_t nbytes, again;
	char *first;

	(void)state;
	make(COLLAPSE);
	SUCCEEDS(tune_report_write(path, &made.result, &error), &error);
	first = contents(path, &nbytes);
	first = memcpy(malloc(nbytes), first, nbytes);
	SUCCEEDS(tune_report_write(path, &made.result, &error), &error);
	assert_memory_equal(first, contents(path, &again), nbytes);
	assert_int_equal(again, nbytes);
	free(first);
}

static void an_unwritable_report_is_reported_with_path_and_reason(void **state)
{
	const char *path = path_in(temp_directory(), "missing/report.html");
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	make(SATURATING);
	assert_int_equal(tune_report_write(path, &made.result, &error), -ENOENT);
	assert_int_equal(error.code, -ENOENT);
	assert_says(error.text, path);
	assert_says(error.text, strerror(ENOENT));
	assert_int_equal(tune_report_write("/dev/full", &made.result, &error), -ENOSPC);
	assert_says(error.text, "/dev/full");
	assert_says(error.text, strerror(ENOSPC));
}

static void a_device_is_written_to_and_not_replaced(void **state)
{
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	make(SATURATING);
	SUCCEEDS(tune_report_write("/dev/null", &made.result, &error), &error);
}

/* ---- For test_tune_report.py ---- */

static void list_values(void)
{
	for (size_t i = 0; i < made.outcome.n; i++) {
		const struct tune_trial *trial = &made.trials[i];

		printf("%u %" PRIu32 " %" PRIu32 " %" PRIu32 " %d %.17g %d %u\n", trial->objective,
		       trial->point.block_size, trial->point.queue_depth, trial->point.thread_count,
		       trial->point.single_submit, trial->mean, trial == made.outcome.chosen,
		       trial->rounds);
	}
}

static int for_the_script(int argc, char **argv)
{
	struct nvs_error error = {.size = sizeof(error)};

	for (unsigned kind = 0; kind < KINDS; kind++) {
		if (argc < 3 || strcmp(argv[2], kinds[kind]) != 0)
			continue;
		make((enum kind)kind);
		if (argc == 3 && !strcmp(argv[1], "values")) {
			list_values();
			return 0;
		}
		if (argc == 4 && !strcmp(argv[1], "page")) {
			if (!tune_report_write(argv[3], &made.result, &error))
				return 0;
			fprintf(stderr, "%s\n", error.text);
			return 1;
		}
	}
	fprintf(stderr, "test_tune_report [page KIND FILE | values KIND]\n");
	return 2;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		test(a_report_replaces_a_longer_one),
		test(the_same_result_gives_the_same_bytes),
		test(an_unwritable_report_is_reported_with_path_and_reason),
		test(a_device_is_written_to_and_not_replaced),
	};

	if (argc > 1)
		return for_the_script(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
