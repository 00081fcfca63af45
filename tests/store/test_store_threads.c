/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may run at once: a commit and a reservation that the drive holds delay nothing but a second
 * one of their kind. The calls that sleep are held here until the test lets them go on.
 */
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>

#include "store/store_fixture.h"

/* The calls of one kind: the next one says that it is held, and waits until it may go on. */
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

/* ---- A store with one tensor, which some thread commits or next to which one reserves ---- */

struct work {
	struct store *store;
	struct store_entry entry;
	uint64_t nbytes, offset;
	int rc;
};

static void *commit(void *arg)
{
	struct work *work = arg;

	work->rc = store_commit(work->store, &work->entry, 1, NULL);
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
	/* A call that waits for what is held would wait for ever. */
	alarm(20);
	assert_int_equal(pthread_create(thread, NULL, fn, work), 0);
}

static void finish(pthread_t thread)
{
	assert_int_equal(pthread_join(thread, NULL), 0);
	alarm(0);
}

static struct work begin(void)
{
	const uint64_t nbytes[2] = {4096, 4096};
	struct work work = {.store = must_open((struct how){.keep = true}), .nbytes = MIB(64)};
	uint64_t offsets[2];

	assert_int_equal(store_reserve(work.store, nbytes, 2, offsets, &error), 0);
	work.entry = (struct store_entry){.name = "weight",
					  .dtype = NVS_U8,
					  .numel = 4096,
					  .nbytes = 4096,
					  .offset = offsets[0],
					  .spare = offsets[1],
					  .written = true};
	return work;
}

/* Each call of another function of the store, and a transfer. */
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

/* Holds the n-th of these calls that a commit makes, and uses the store meanwhile. */
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

/* The syncs: of the data, of the manifest, of the label. */
static void a_commit_that_syncs_delays_no_other_call(void **state)
{
	(void)state;
	for (unsigned n = 0; n < 3; n++)
		use_during_commit(&syncs, n);
}

/* A second commit begins after the first: it sees a manifest with the next number. */
static void two_commits_at_once_come_one_after_the_other(void **state)
{
	struct work first = begin(), second = first;
	pthread_t threads[2];

	(void)state;
	second.entry.has_checksum = true;
	second.entry.checksum = 7;
	arm(&syncs);
	start(&threads[0], commit, &first);
	wait_until_held(&syncs);
	start(&threads[1], commit, &second);
	sem_post(&syncs.go_on);
	finish(threads[0]);
	finish(threads[1]);
	assert_int_equal(first.rc, 0);
	assert_int_equal(second.rc, 0);
	assert_int_equal(first.store->manifest.generation, 2);
	store_close(first.store);
}

static void a_file_that_grows_delays_no_release(void **state)
{
	struct work work = begin();
	pthread_t thread;

	(void)state;
	arm(&growths);
	start(&thread, reserve, &work);
	wait_until_held(&growths);
	store_release(work.store, work.entry.spare, 4096);
	assert_true(store_bytes(work.store) > 0);
	assert_int_equal(store_commit(work.store, NULL, 0, &error), 0);
	sem_post(&growths.go_on);
	finish(thread);
	assert_int_equal(work.rc, 0);
	assert_int_not_equal(work.offset, work.entry.offset);
	store_close(work.store);
}

/* The second finds what the first left: extents that do not overlap. */
static void two_reservations_at_once_come_one_after_the_other(void **state)
{
	struct work first = begin(), second = first;
	pthread_t threads[2];

	(void)state;
	arm(&growths);
	start(&threads[0], reserve, &first);
	wait_until_held(&growths);
	start(&threads[1], reserve, &second);
	sem_post(&growths.go_on);
	finish(threads[0]);
	finish(threads[1]);
	assert_int_equal(first.rc, 0);
	assert_int_equal(second.rc, 0);
	assert_true(first.offset + MIB(64) <= second.offset ||
		    second.offset + MIB(64) <= first.offset);
	store_close(first.store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		store_test(a_commit_that_syncs_delays_no_other_call),
		store_test(two_commits_at_once_come_one_after_the_other),
		store_test(a_file_that_grows_delays_no_release),
		store_test(two_reservations_at_once_come_one_after_the_other),
	};

	return cmocka_run_group_tests(tests, open_aio, close_aio);
}
