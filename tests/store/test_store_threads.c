/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Concurrent calls: a commit or reservation that waits for the drive delays only a second one of
 * its kind. The tests hold the system calls that sleep.
 */
#include <semaphore.h>
#include <sys/syscall.h>

#include "store/store_fixture.h"

/* Holds the next system call of one kind until the test releases it. */
struct gate {
	bool armed;
	sem_t held, go_on;
};

static struct gate syncs, growths;

static void pass(struct gate *gate)
{
	if (!__atomic_exchange_n(&gate->armed, false, __ATOMIC_ACQ_REL))
		return;
	sem_post(&gate->held);
	while (sem_wait(&gate->go_on))
		;
}

static void arm(struct gate *gate)
{
	sem_init(&gate->held, 0, 0);
	sem_init(&gate->go_on, 0, 0);
	__atomic_store_n(&gate->armed, true, __ATOMIC_RELEASE);
}

static void wait_until_held(struct gate *gate)
{
	while (sem_wait(&gate->held))
		;
}

int fdatasync(int fd)
{
	pass(&syncs);
	return (int)syscall(SYS_fdatasync, fd);
}

int posix_fallocate(int fd, off_t offset, off_t nbytes)
{
	pass(&growths);
	return syscall(SYS_fallocate, fd, 0, offset, nbytes) ? errno : 0;
}

/* ---- A store with one tensor, which one thread commits while others reserve ---- */

struct work {
	struct store *store;
	struct store_entry entry;
	uint64_t nbytes, offset;
	int rc;
};

static void *commit(void *arg)
{
	struct work *work = arg;

	work->rc = store_commit(work->store, &work->entry, 1, NULL, NULL);
	return NULL;
}

static void *reserve(void *arg)
{
	struct work *work = arg;

	work->rc = store_reserve(work->store, &work->nbytes, 1, &work->offset, NULL);
	return NULL;
}

static void start(pthread_t *thread, void *(*fn)(void *), struct work *work)
{
	/* A call that waits for the held one would block forever. */
	alarm(120);
	assert_int_equal(pthread_create(thread, NULL, fn, work), 0);
}

static void finish(pthread_t thread)
{
	assert_int_equal(pthread_join(thread, NULL), 0);
	alarm(0);
}

static struct work begin(void)
{
	struct work work = {.store = must_open((struct how){.keep = true}), .nbytes = MIB(64)};

	work.entry = reserve_entry(work.store, 4096);
	return work;
}

/* Calls every other function of the store, and moves a transfer. */
static void use(struct store *store)
{
	uint64_t nbytes = MIB(2), offset;
	static uint8_t wrote[4096], read[4096];

	fill(wrote, sizeof(wrote), 1);
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	move(store, NVS_WRITE, wrote, sizeof(wrote), offset);
	move(store, NVS_READ, read, sizeof(read), offset);
	assert_memory_equal(wrote, read, sizeof(read));
	assert_true(store_bytes(store) >= nbytes);
	store_release(store, offset, nbytes);
}

/* Holds the n-th of these system calls of a commit, and uses the store during it. */
static void use_during_commit(struct gate *gate, unsigned n)
{
	struct work work = begin();
	pthread_t thread;

	arm(gate);
	start(&thread, commit, &work);
	wait_until_held(gate);
	while (n--) {
		__atomic_store_n(&gate->armed, true, __ATOMIC_RELEASE);
		sem_post(&gate->go_on);
		wait_until_held(gate);
	}
	use(work.store);
	sem_post(&gate->go_on);
	finish(thread);
	assert_int_equal(work.rc, 0);
	store_close(work.store);
	remove_tree(at("nvswap"));
}

/* A commit syncs the data, the manifest and the label. */
TEST(a_commit_that_syncs_delays_no_other_call)
{
	for (unsigned n = 0; n < 3; n++)
		use_during_commit(&syncs, n);
}

/* Begins the second call while the first is held. */
static void call_both(struct gate *gate, void *(*fn)(void *), struct work *first,
		      struct work *second)
{
	pthread_t threads[2];

	arm(gate);
	start(&threads[0], fn, first);
	wait_until_held(gate);
	start(&threads[1], fn, second);
	sem_post(&gate->go_on);
	finish(threads[0]);
	finish(threads[1]);
	assert_int_equal(first->rc, 0);
	assert_int_equal(second->rc, 0);
}

TEST(concurrent_commits_are_serialized)
{
	struct work first = begin(), second = first;

	second.entry.has_checksum = true;
	second.entry.checksum = 7;
	call_both(&syncs, commit, &first, &second);
	assert_int_equal(first.store->manifest.generation, 2);
	store_close(first.store);
}

TEST(a_file_that_grows_delays_no_release)
{
	struct work work = begin();
	pthread_t thread;

	arm(&growths);
	start(&thread, reserve, &work);
	wait_until_held(&growths);
	store_release(work.store, work.entry.spare, 4096);
	assert_true(store_bytes(work.store) > 0);
	assert_int_equal(store_commit(work.store, NULL, 0, NULL, &error), 0);
	sem_post(&growths.go_on);
	finish(thread);
	assert_int_equal(work.rc, 0);
	assert_int_not_equal(work.offset, work.entry.offset);
	store_close(work.store);
}

TEST(concurrent_reservations_are_serialized)
{
	struct work first = begin(), second = first;

	call_both(&growths, reserve, &first, &second);
	assert_true(first.offset + MIB(64) <= second.offset ||
		    second.offset + MIB(64) <= first.offset);
	store_close(first.store);
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
