/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits concurrent with other calls: while a commit syncs the store, tensors are read, written,
 * forgotten and registered, and the commit has the state at its beginning.
 */
#include "support/inject.h"
#include "swap/swap_fixture.h"

#include <semaphore.h>

ONE_ENGINE

/* Holds a commit in its first sync. */
static sem_t syncing, go;
static int committed;

static void hold_sync(void *arg, int fd)
{
	(void)arg, (void)fd;
	sem_post(&syncing);
	while (sem_wait(&go))
		;
	/* Later ones are not held. */
	sem_post(&go);
}

static void *commit_main(void *arg)
{
	(void)arg;
	committed = nvs_engine_commit(f->engine, NULL);
	return NULL;
}

static int commit_end(pthread_t commit)
{
	sem_post(&go);
	pthread_join(commit, NULL);
	inject_observe(NULL);
	return committed;
}

/* The tensors of these tests: a was written since the last commit, b was not, and c is new. */
enum { A, B, C, COUNT };

static const uint64_t lengths[COUNT] = {4096, 300 * KIB, 5000};
static struct nvs_tensor *t[COUNT];

/* Returns a commit that is in its first sync. */
static pthread_t begin(void)
{
	static const struct inject_observer observer = {.synced = hold_sync};
	pthread_t commit;

	OPEN(f, .place = PLACE_DISK, .keep = true);
	tensors_add(f, "t", lengths, 2, t);
	tensor_store(f, t[A], 1);
	tensor_store(f, t[B], 2);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_store(f, t[A], 11);
	t[C] = tensor_add(f, "c", lengths[C]);
	tensor_store(f, t[C], 13);
	sem_init(&syncing, 0, 0);
	sem_init(&go, 0, 0);
	inject_observe(&observer);
	MUST(!pthread_create(&commit, NULL, commit_main, NULL));
	while (sem_wait(&syncing))
		;
	return commit;
}

static void register_again(size_t n)
{
	tensors_add(f, "t", lengths, 2, t);
	if (n > 2)
		t[C] = tensor_add(f, "c", lengths[C]);
}

/* What a commit that begins after begin() has. */
static void compare_all(void)
{
	tensor_compare(f, t[A], 11);
	tensor_compare(f, t[B], 2);
	tensor_compare(f, t[C], 13);
}

TEST(tensors_are_read_while_a_commit_syncs)
{
	pthread_t commit = begin();

	compare_all();
	STATE(f, t[A], NVS_RESIDENT, false, 0);
	OK(f, commit_end(commit));
}

/* Overwrites all tensors during the commit; b and c twice. */
static void overwrite_during(void)
{
	for (uint64_t round = 1; round <= 2; round++) {
		tensor_store(f, t[B], round * 100 + B);
		tensor_store(f, t[C], round * 100 + C);
	}
	/* Both extents of a are named by a manifest, so its write begins when the commit ends. */
	tensor_write(f, t[A], 200 + A);
	OK(f, nvs_tensor_swap_out(f->engine, &t[A], 1, &f->error));
	STATE(f, t[A], NVS_WRITING, false, 0);
	assert_int_equal(sole_wait(f->engine, &t[A], 1, 0, &f->error), -EAGAIN);
}

TEST(a_crash_after_a_commit_finds_the_state_at_its_beginning)
{
	pthread_t commit = begin();

	overwrite_during();
	OK(f, commit_end(commit));
	OK(f, sole_wait(f->engine, &t[A], 1, -1, &f->error));
	tensors_compare(f, t, COUNT, 200);
	fixture_crash(f);
	register_again(COUNT);
	compare_all();
}

TEST(a_crash_after_a_failed_commit_finds_the_previous_one)
{
	pthread_t commit = begin();

	overwrite_during();
	/* The new manifest can't be written. */
	inject_fail(INJECT_WRITE, 1, 1, EIO);
	assert_int_equal(commit_end(commit), -EIO);
	inject_stop(NULL);
	OK(f, sole_wait(f->engine, &t[A], 1, -1, &f->error));
	tensors_compare(f, t, COUNT, 200);
	fixture_crash(f);
	register_again(2);
	tensor_compare(f, t[A], 1);
	tensor_compare(f, t[B], 2);
}

TEST(the_next_commit_has_writes_made_during_the_previous_one)
{
	pthread_t commit = begin();

	overwrite_during();
	OK(f, commit_end(commit));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	fixture_crash(f);
	register_again(COUNT);
	tensors_compare(f, t, COUNT, 200);
}

/* New tensors must not get the space of one that the manifest being written names. */
TEST(a_tensor_forgotten_during_a_commit_is_in_it)
{
	struct nvs_tensor *more[4];
	pthread_t commit = begin();

	OK(f, nvs_tensor_forget(f->engine, t, COUNT, &f->error));
	tensors_add(f, "u", (uint64_t[]){4096, 300 * KIB, 5000, 4096}, 4, more);
	tensors_store(f, more, 4, 50);
	OK(f, commit_end(commit));
	tensors_store(f, more, 4, 60);
	fixture_crash(f);
	register_again(COUNT);
	compare_all();
}

/*
 * The label of a commit reaches the drive without being durable, and can't be taken back: the drive
 * has the commit, though it failed. No extent of it or of the one before is written until the next
 * commit has settled which of the two counts.
 */
TEST(after_two_failed_writes_in_a_commit_both_values_stay_whole)
{
	for (unsigned settles = 0; settles < 2; settles++) {
		OPEN(f, .place = PLACE_DISK, .keep = true, .verify = true);
		t[A] = tensor_add(f, "a", 100000);
		tensor_store(f, t[A], 1);
		OK(f, nvs_engine_commit(f->engine, &f->error));
		tensor_store(f, t[A], 2);
		/* A sync of the data, two writes and two syncs of manifests, the write of a label;
		 * its sync fails, and then the write that takes it back. */
		inject_fail(INJECT_WRITE | INJECT_SYNC, 7, 2, EIO);
		FAILS(f, -EIO, "could not be taken back either", nvs_engine_commit);
		inject_stop(NULL);
		tensor_write(f, t[A], 3);
		OK(f, nvs_tensor_swap_out(f->engine, t, 1, &f->error));
		FAILS(f, -EIO, "commit again", sole_wait, t, 1, -1);
		tensor_compare(f, t[A], 3);
		if (settles) {
			OK(f, nvs_engine_commit(f->engine, &f->error));
			tensor_compare(f, t[A], 3);
		}
		fixture_crash(f);
		t[A] = tensor_add(f, "a", 100000);
		tensor_compare(f, t[A], settles ? 3 : 2);
		fixture_close(f);
	}
}

/* ---- How a commit writes ---- */

struct writes {
	uint64_t nbytes;
	size_t longest;
};

static void note_write(void *arg, int fd, const void *data, size_t nbytes, uint64_t offset)
{
	struct writes *writes = arg;

	(void)fd, (void)data, (void)offset;
	writes->nbytes += nbytes;
	if (writes->longest < nbytes)
		writes->longest = nbytes;
}

/* A long write in the drive's queue would delay the reads of others for as long. */
TEST(a_commit_writes_in_pieces)
{
	enum { TENSORS = 3000 };
	struct writes writes = {0};
	const struct inject_observer observer = {.arg = &writes, .before_write = note_write};
	static uint64_t nbytes[TENSORS];
	static struct nvs_tensor *all[TENSORS];

	OPEN(f, .place = PLACE_DISK, .keep = true, .pool_bytes = 1 << 20);
	for (size_t i = 0; i < TENSORS; i++)
		nbytes[i] = 4;
	tensors_add(f, "t", nbytes, TENSORS, all);
	tensor_store(f, all[0], 1);
	inject_observe(&observer);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	inject_observe(NULL);
	assert_true(writes.nbytes > 2 * 64 * 1024);
	assert_in_range(writes.longest, 1, 64 * 1024);
	tensor_compare(f, all[0], 1);
}
