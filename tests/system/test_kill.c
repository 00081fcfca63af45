/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that swap and commit on one kept store, and are killed at random moments, many
 * times. Each time, the contents found are those of one commit, bit for bit: the last that
 * returned, or the one in progress. Of a store that is not kept nothing is left. `test_kill soak
 * [--minutes N] [--seed N]` kills for that time.
 */
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <xxhash.h>

#include "base/clock.h"
#include "swap/swap_fixture.h"
#include "system/soak.h"

#define GIVE_UP_NS UINT64_C(20000000000)
/* Enough for some commits. */
#define SWAPS_NS UINT64_C(25000000)

/* Numbers of the commits that the process reported before it was killed. */
struct progress {
	_Atomic uint64_t begun, finished;
	int opened[2]; /* pipe that reports the open */
};

static struct progress *progress;

static uint64_t kills;
static unsigned soak_rounds; /* 0: as many as a test has */
static uint64_t soak_seed;

static unsigned rounds_of(unsigned all, unsigned few)
{
	return soak_rounds ? soak_rounds : at_length(all, few);
}

/* The seed of a test, or of the soak's next test. */
static uint64_t next_seed(void)
{
	return soak_rounds ? ++soak_seed : seed_of_run();
}

static int open_progress(void **state)
{
	(void)state;
	progress = mmap(NULL, sizeof(*progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			-1, 0);
	return progress == MAP_FAILED ? -1 : 0;
}

static int close_progress(void **state)
{
	munmap(progress, sizeof(*progress));
	return places_leave_all(state);
}

/*
 * Forks a child that runs `work` and kills it within SWAPS_NS after it opened the store, or
 * sometimes during the open.
 */
static void kill_in(void (*work)(void *arg), void *arg, uint64_t *seed)
{
	struct timespec moment = {.tv_nsec = (long)below(seed, SWAPS_NS)};
	bool opening = below(seed, 8) == 0;
	int status;
	char byte;
	pid_t pid;

	MUST(!pipe(progress->opened));
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		close(progress->opened[0]);
		work(arg);
		abort();
	}
	close(progress->opened[1]);
	if (!opening && read(progress->opened[0], &byte, 1) != 1)
		moment.tv_nsec = 0; /* the child ended by itself, which is checked below */
	nanosleep(&moment, NULL);
	kill(pid, SIGKILL);
	kills++;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(progress->opened[0]);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

/* ---- Tensors ---- */

/*
 * Commit n gives some tensors contents of n. The numbers alone decide which, so a commit's number
 * determines the contents of every tensor. Tensors that are forgotten are test_power's.
 */
#define N 16

static const uint64_t lengths[N] = {5000, 70000, 0,	1,    4096, 65536, 100000, 511,
				    8192, 9999,	 20000, 4097, 1,    30000, 12288,  777};

struct round {
	struct fixture f;
	struct nvs_tensor *t[N], *number;
};

static uint64_t decide(uint64_t commit, uint64_t tensor, uint64_t choices)
{
	const uint64_t both[2] = {commit, tensor};

	return XXH3_64bits(both, sizeof(both)) % choices;
}

static bool is_written(uint64_t commit, uint64_t tensor)
{
	return decide(commit, tensor, 3) == 0;
}

static uint64_t contents_of(uint64_t commit, uint64_t tensor)
{
	return commit * 100 + tensor;
}

static void open_store(struct round *r)
{
	const struct nvs_tensor_spec number = {
		.size = sizeof(number), .name = "number", .dtype = NVS_U64, .numel = 1};
	uint64_t since = clock_ns();
	int rc;

	/* The kernel can take a moment to close a killed process's files. */
	do
		rc = fixture_reopen(&r->f);
	while (rc == -EBUSY && clock_ns() - since < GIVE_UP_NS);
	OK(&r->f, rc);
	tensors_add(&r->f, "t", lengths, N, r->t);
	MUST(!nvs_tensor_register(r->f.engine, &number, 1, &r->number, NULL));
}

/* The number of the commit that the store holds; 0: none. */
static uint64_t found_number(struct round *r)
{
	uint64_t number;
	void *data = &number;

	if (info_of(&r->f, r->number).state == NVS_EMPTY)
		return 0;
	MUST(!nvs_tensor_swap_in_to(r->f.engine, &r->number, &data, 1, NULL));
	MUST(!sole_wait(r->f.engine, &r->number, 1, -1, NULL));
	return number;
}

static void write_from(struct round *r, struct nvs_tensor *tensor, const void *data)
{
	MUST(!nvs_tensor_swap_out_from(r->f.engine, &tensor, &data, 1, NULL));
	MUST(!sole_wait(r->f.engine, &tensor, 1, -1, NULL));
}

/* From the pool or external memory, written back now, by an eviction or by the commit. */
static void write_tensor(struct round *r, uint64_t i, uint64_t contents, uint64_t way)
{
	static char memory[100000];

	if (way == 0) {
		/* A write-back of the plan or of an eviction can be in flight. */
		MUST(!sole_wait(r->f.engine, &r->t[i], 1, -1, NULL));
		fill(memory, lengths[i], contents);
		write_from(r, r->t[i], memory);
		return;
	}
	tensor_write(&r->f, r->t[i], contents);
	if (way == 1)
		MUST(!nvs_tensor_swap_out(r->f.engine, &r->t[i], 1, NULL));
}

static void swap_and_commit(void *arg)
{
	struct round *r = arg;

	open_store(r);
	MUST(write(progress->opened[1], "", 1) == 1);
	for (uint64_t number = found_number(r) + 1;; number++) {
		for (uint64_t i = 0; i < N; i++) {
			if (!is_written(number, i))
				continue;
			/* Contents overwritten before the commit must never be found. */
			for (uint64_t k = decide(number, i + N, 3); k; k--)
				write_tensor(r, i, ~contents_of(number, i) - k, k % 2);
			write_tensor(r, i, contents_of(number, i), decide(number, i + 2 * N, 3));
		}
		write_from(r, r->number, &number);
		atomic_store(&progress->begun, number);
		MUST(!nvs_engine_commit(r->f.engine, NULL));
		atomic_store(&progress->finished, number);
	}
}

static void check_tensors(struct round *r, uint64_t number)
{
	uint64_t units = 1;
	char path[512];
	struct stat st;

	for (uint64_t i = 0; i < N; i++) {
		uint64_t version = number; /* the commit that wrote it; 0: none */

		while (version && !is_written(version, i))
			version--;
		units += (lengths[i] + 4095) / 4096;
		if (version) {
			tensor_compare(&r->f, r->t[i], contents_of(version, i));
			continue;
		}
		STATE(&r->f, r->t[i], NVS_EMPTY, false, 0);
		expect_error(&r->f, sole_swap_in(r->f.engine, &r->t[i], 1, 0, &r->f.error),
			     -ENODATA, "has no contents");
	}
	/* The data begin at 2 MiB. A tensor has two extents; growing doubles the space. */
	fixture_store_file(&r->f, "data", path);
	assert_int_equal(stat(path, &st), 0);
	assert_true((uint64_t)st.st_size <= 2 * MIB + 2 * 2 * 4096 * units);
}

static void kill_and_look(const struct setup *setup, unsigned rounds)
{
	uint64_t seed = next_seed(), last = 0, during = 0;
	struct round r;

	atomic_store(&progress->begun, 0);
	atomic_store(&progress->finished, 0);
	fixture_init(&r.f, setup);
	for (unsigned round = 0; round < rounds; round++) {
		uint64_t found, begun, finished;

		kill_in(swap_and_commit, &r, &seed);
		begun = atomic_load(&progress->begun);
		finished = atomic_load(&progress->finished);
		open_store(&r);
		found = found_number(&r);
		if (found != finished && found != begun)
			fail_msg("round %u: commit %" PRIu64 " was found, %" PRIu64
				 " had returned and %" PRIu64 " begun",
				 round, found, finished, begun);
		check_tensors(&r, found);
		fixture_shut(&r.f);
		during += begun != finished;
		last = found;
		atomic_store(&progress->begun, found);
		atomic_store(&progress->finished, found);
	}
	print_message("%" PRIu64 " commits in %u rounds, %" PRIu64 " killed in a commit\n", last,
		      rounds, during);
	fixture_close(&r.f);
}

TEST(a_commit_survives_a_kill)
{
	kill_and_look(&(struct setup){.place = PLACE_DISK,
				      .keep = true,
				      .pool_bytes = 200 * KIB,
				      .block_size = 16 * KIB,
				      .thread_count = 2},
		      rounds_of(SANITIZED ? 6 : 24, 6));
}

TEST(a_commit_survives_a_kill_over_stripes)
{
	kill_and_look(&(struct setup){.place = PLACE_TMPFS,
				      .keep = true,
				      .pool_bytes = 200 * KIB,
				      .npaths = 2,
				      .stripe_size = 12 * KIB,
				      .ioengine = NVS_IOENGINE_POSIX},
		      rounds_of(SANITIZED ? 4 : 15, 4));
}

/* ---- A store that is not kept ---- */

/* Swaps for good. */
static void swap_on(void *arg)
{
	struct round *r = arg;

	open_store(r);
	for (uint64_t i = 0; i < N; i++)
		write_tensor(r, i, i, 0);
	MUST(write(progress->opened[1], "", 1) == 1);
	for (uint64_t round = 1;; round++)
		for (uint64_t i = 0; i < N; i++)
			write_tensor(r, i, round, round % 2);
}

static int has_no_bytes(const char *path, const struct stat *st, int type, struct FTW *where)
{
	if (type == FTW_F && (st->st_size || st->st_blocks))
		fail_msg("%s is left, with %jd bytes", path, (intmax_t)st->st_size);
	if (type == FTW_F)
		assert_string_equal(path + where->base, "data");
	return 0;
}

/* What is left are the names of the directories and of the empty file that was locked. */
static void nothing_is_left_but_names(const struct fixture *f)
{
	for (unsigned i = 0; i < f->setup.npaths; i++)
		assert_int_equal(nftw(f->paths[i], has_no_bytes, 8, FTW_PHYS), 0);
}

TEST_WITH(a_killed_job_leaves_no_data_behind, NULL, cleanup)
{
	static const struct setup setups[] = {
		{.place = PLACE_DISK, .pool_bytes = 200 * KIB},
		{.place = PLACE_DISK, .pool_bytes = 200 * KIB, .ioengine = NVS_IOENGINE_POSIX},
		{.place = PLACE_TMPFS,
		 .pool_bytes = 200 * KIB,
		 .npaths = 2,
		 .stripe_size = 12 * KIB},
	};
	int fd = open(temp_directory(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	uint64_t seed = next_seed();

	if (fd < 0 && errno == EOPNOTSUPP)
		SKIP("the file system has no files without a name");
	close(fd);
	for (size_t i = 0; i < LENGTH(setups); i++) {
		struct round r;

		fixture_init(&r.f, &setups[i]);
		for (unsigned round = 0; round < rounds_of(4, 4); round++) {
			kill_in(swap_on, &r, &seed);
			nothing_is_left_but_names(&r.f);
		}
		open_store(&r);
		nothing_is_left_but_names(&r.f);
		fixture_shut(&r.f);
		for (unsigned path = 0; path < r.f.setup.npaths; path++)
			assert_int_equal(entries_of(r.f.paths[path]), 0);
		fixture_close(&r.f);
	}
}

/* ---- At length ---- */

static bool kill_many(uint64_t seed)
{
	int rc;

	soak_rounds = 50;
	soak_seed = seed * 1000;
	rc = tests_run(__FILE__);
	print_message("%" PRIu64 " kills\n", kills);
	return !rc;
}

AROUND_TESTS(open_progress, close_progress)

int main(int argc, char **argv)
{
	int rc = argc == 1 ? tests_run(__FILE__) : soak(argc, argv, kill_many);

	if (rc >= 0)
		return rc;
	fprintf(stderr, "test_kill [soak [--minutes N] [--seed N]]\n");
	return 2;
}
