/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commits concurrent with other calls: while a commit syncs the store, tensors are read, written,
 * forgotten and registered, and the commit has the state at its beginning.
 */
#include "support/inject.h"
#include "support/tests.h"
#include "swap/swap_fixture.h"

#include <errno.h>

ONE_ENGINE

/* Holds a commit in its first sync. */
struct commit {
	struct fixture *f;
	struct inject_observer observer;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool syncing, go;
	int rc;
	struct nvs_error error;
};

static void hold_sync(void *arg, int fd)
{
	struct commit *commit = arg;

	(void)fd;
	pthread_mutex_lock(&commit->lock);
	commit->syncing = true;
	pthread_cond_broadcast(&commit->changed);
	while (!commit->go)
		pthread_cond_wait(&commit->changed, &commit->lock);
	pthread_mutex_unlock(&commit->lock);
}

static void *commit_main(void *arg)
{
	struct commit *commit = arg;

	commit->rc = nvs_engine_commit(commit->f->engine, &commit->error);
	return NULL;
}

/* Returns when the commit is in its first sync. */
static void commit_begin(struct commit *commit)
{
	*commit = (struct commit){.f = f,
				  .observer = {.arg = commit, .synced = hold_sync},
				  .lock = PTHREAD_MUTEX_INITIALIZER,
				  .changed = PTHREAD_COND_INITIALIZER,
				  .error = {.size = sizeof(commit->error)}};
	inject_observe(&commit->observer);
	MUST(!pthread_create(&commit->thread, NULL, commit_main, commit));
	pthread_mutex_lock(&commit->lock);
	while (!commit->syncing)
		pthread_cond_wait(&commit->changed, &commit->lock);
	pthread_mutex_unlock(&commit->lock);
}

static int commit_end(struct commit *commit)
{
	pthread_mutex_lock(&commit->lock);
	commit->go = true;
	pthread_cond_broadcast(&commit->changed);
	pthread_mutex_unlock(&commit->lock);
	pthread_join(commit->thread, NULL);
	inject_observe(NULL);
	return commit->rc;
}

/* Abandoning the engine leaves the store in the state of a crash. */
static void crash_and_reopen(void)
{
	engine_abandon(f->engine);
	fixture_again(f);
}

/* The tensors of these tests: a was written since the last commit, b was not, and c is new. */
enum { A, B, C, COUNT };

static const uint64_t lengths[COUNT] = {4096, 300 * KIB, 5000};
static struct nvs_tensor *t[COUNT];

/* Returns in the first sync of a commit. */
static void begin(struct commit *commit)
{
	fixture_open(f, &(const struct setup){.place = PLACE_DISK, .keep = true});
	tensors_add(f, "t", lengths, 2, t);
	tensor_store(f, t[A], 1);
	tensor_store(f, t[B], 2);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_store(f, t[A], 11);
	t[C] = tensor_add(f, "c", lengths[C]);
	tensor_store(f, t[C], 13);
	commit_begin(commit);
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
	struct commit commit;

	begin(&commit);
	compare_all();
	STATE(f, t[A], NVS_RESIDENT, false, 0);
	OK(f, commit_end(&commit));
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
	struct commit commit;

	begin(&commit);
	overwrite_during();
	OK(f, commit_end(&commit));
	OK(f, sole_wait(f->engine, &t[A], 1, -1, &f->error));
	tensors_compare(f, t, COUNT, 200);
	crash_and_reopen();
	register_again(COUNT);
	compare_all();
}

TEST(a_crash_after_a_failed_commit_finds_the_previous_one)
{
	struct commit commit;

	begin(&commit);
	overwrite_during();
	/* The new manifest can't be written. */
	inject_fail(INJECT_WRITE, 1, 1, EIO);
	assert_int_equal(commit_end(&commit), -EIO);
	inject_stop(NULL);
	OK(f, sole_wait(f->engine, &t[A], 1, -1, &f->error));
	tensors_compare(f, t, COUNT, 200);
	crash_and_reopen();
	register_again(2);
	tensor_compare(f, t[A], 1);
	tensor_compare(f, t[B], 2);
}

TEST(the_next_commit_has_writes_made_during_the_previous_one)
{
	struct commit commit;

	begin(&commit);
	overwrite_during();
	OK(f, commit_end(&commit));
	OK(f, nvs_engine_commit(f->engine, &f->error));
	crash_and_reopen();
	register_again(COUNT);
	tensors_compare(f, t, COUNT, 200);
}

/* New tensors must not get the space of one that the manifest being written names. */
TEST(a_tensor_forgotten_during_a_commit_is_in_it)
{
	struct nvs_tensor *more[4];
	struct commit commit;

	begin(&commit);
	OK(f, nvs_tensor_forget(f->engine, t, COUNT, &f->error));
	tensors_add(f, "u", (uint64_t[]){4096, 300 * KIB, 5000, 4096}, 4, more);
	tensors_store(f, more, 4, 50);
	OK(f, commit_end(&commit));
	tensors_store(f, more, 4, 60);
	crash_and_reopen();
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
		crash_and_reopen();
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
	uint64_t *nbytes = calloc(TENSORS, sizeof(*nbytes));
	struct nvs_tensor **all = calloc(TENSORS, sizeof(struct nvs_tensor *));

	MUST(nbytes && all);
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
	fixture_close(f);
	free(all);
	free(nbytes);
}
