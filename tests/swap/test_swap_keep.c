/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kept and temporary stores: what the next run finds after a clean close, after a crash, and if the
 * path holds another store; and opening an engine, with its refusals.
 */
#include "store/member/member.h"
#include "swap/swap_fixture.h"

#include <signal.h>
#include <sys/resource.h>

ONE_ENGINE

#define N 12

static struct nvs_tensor *t[N];

static const uint64_t lengths[N] = {5000, 70000, 0, 1, 4096, 65536, 300000, 511, 8192, 1, 9999, 77};

static off_t file_bytes(const char *name)
{
	struct stat st;
	char path[512];

	fixture_store_file(f, name, path);
	return stat(path, &st) ? -1 : st.st_size;
}

static void register_and_write(uint64_t seed)
{
	tensors_add(f, "t", lengths, N, t);
	tensors_write(f, t, N, seed);
}

/* Opens the store again, as the next run does. */
static void reopen(void)
{
	OK(f, fixture_reopen(f));
	tensors_add(f, "t", lengths, N, t);
}

static void reopen_and_check(uint64_t seed)
{
	reopen();
	tensors_compare(f, t, N, seed);
}

/* ---- Found again ---- */

static void a_kept_store_is_found_again(const struct setup *setup)
{
	off_t nbytes = 0;

	fixture_init(f, setup);
	for (uint64_t run = 0; run < 5; run++) {
		OK(f, fixture_reopen(f));
		assert_null(nvs_tensor_find(f->engine, "t0"));
		tensors_add(f, "t", lengths, N, t);
		if (run) {
			for (int i = 0; i < N; i++)
				STATE(f, t[i], NVS_ON_DRIVE, false, 0);
			tensors_compare(f, t, N, run - 1);
			assert_int_equal(file_bytes("data"), nbytes);
		}
		tensors_write(f, t, N, run);
		nbytes = file_bytes("data");
		if (run % 2)
			OK(f, nvs_tensor_swap_out(f->engine, t, N, &f->error));
		fixture_shut(f);
		assert_int_equal(file_bytes("data"), nbytes);
	}
	fixture_close(f);
}

TEST(is_found_again_with_its_data)
{
	a_kept_store_is_found_again(&(struct setup){.place = PLACE_DISK, .keep = true});
	a_kept_store_is_found_again(
		&(struct setup){.place = PLACE_TMPFS, .keep = true, .verify = true});
	a_kept_store_is_found_again(&(struct setup){.place = PLACE_EXT4,
						    .keep = true,
						    .npaths = 3,
						    .stripe_size = 3 * 4096,
						    .verify = true});
}

TEST(tensors_are_found_in_any_order_of_registration)
{
	struct nvs_tensor *again;

	OPEN(f, .place = PLACE_DISK, .keep = true);
	register_and_write(9);
	OK(f, nvs_tensor_forget(f->engine, &t[5], 1, &f->error));
	fixture_again(f);
	for (uint64_t i = N; i--;) {
		char name[16];

		snprintf(name, sizeof(name), "t%d", (int)i);
		again = tensor_add(f, name, lengths[i]);
		if (i == 5)
			STATE(f, again, NVS_EMPTY, false, 0);
		else
			tensor_compare(f, again, 9 + i);
	}
}

TEST(refuses_tensors_of_another_size_or_type)
{
	struct nvs_tensor *tensor;
	struct nvs_tensor_spec spec = U8_TENSOR("t0", 5001);
	const struct nvs_tensor_spec two[] = {U8_TENSOR("t1", lengths[1]), U8_TENSOR("t0", 1)};

	OPEN(f, .place = PLACE_DISK, .keep = true);
	register_and_write(9);
	fixture_again(f);
	FAILS(f, -ESTALE, "t0 as U8 x 5000, not as U8 x 5001", nvs_tensor_register, &spec, 1,
	      &tensor);
	spec.numel = 5000;
	spec.dtype = NVS_I8;
	FAILS(f, -ESTALE, "I8 x 5000", nvs_tensor_register, &spec, 1, &tensor);
	FAILS(f, -ESTALE, "t0", nvs_tensor_register, two, 2, t);
	assert_null(nvs_tensor_find(f->engine, "t0"));
	assert_null(nvs_tensor_find(f->engine, "t1"));
	/* The refusals changed nothing. */
	tensors_add(f, "t", lengths, N, t);
	tensors_compare(f, t, N, 9);
}

TEST(a_failed_close_leaves_the_last_commit)
{
	OPEN(f, .place = PLACE_DISK, .keep = true, .simulated = true);
	register_and_write(1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_write(f, t[6], 2);
	tensor_write(f, t[1], 3);
	tensors_load(f, &t[4], 1);
	/* The write of t1, the first in the store, fails; neither is committed. */
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	FAILS(f, -EIO, "t1: writing", nvs_engine_close);
	reopen_and_check(1);

	/* A tensor that is pinned and dirty fails the commit, and nothing is committed. */
	tensor_write(f, t[6], 2);
	OK(f, sole_swap_in(f->engine, &t[4], 1, 0, &f->error));
	tensors_pin(f, &t[4], 1);
	OK(f, sole_release(f->engine, &t[4], 1, NVS_DIRTY, &f->error));
	FAILS(f, -EBUSY, "t4 is pinned and dirty", nvs_engine_commit);
	OK(f, sole_pin(f->engine, &t[3], 1, 0, &f->error));
	FAILS(f, -EBUSY, "t3 is pinned for new contents", nvs_engine_commit);
	OK(f, sole_release(f->engine, &t[3], 1, NVS_CLEAN, &f->error));
	engine_abandon(f->engine);
	fixture_shut(f);
	reopen_and_check(1);
}

TEST(a_close_that_a_pin_refuses_closes_nothing)
{
	OPEN(f, .place = PLACE_DISK, .keep = true);
	register_and_write(1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	OK(f, sole_pin(f->engine, &t[3], 1, 0, &f->error));
	FAILS(f, -EBUSY, "t3 is pinned for new contents, which are not released yet",
	      nvs_engine_close);
	OK(f, sole_release(f->engine, &t[3], 1, NVS_CLEAN, &f->error));
	tensors_write(f, t, N, 2);
	tensors_pin(f, &t[4], 1);
	FAILS(f, -EBUSY, "or abandon it", nvs_engine_close);
	OK(f, sole_release(f->engine, &t[4], 1, NVS_CLEAN, &f->error));
	fixture_shut(f);
	reopen_and_check(2);
}

TEST(a_run_without_keep_leaves_a_kept_store_alone)
{
	OPEN(f, .place = PLACE_DISK, .keep = true);
	register_and_write(9);
	fixture_shut(f);
	f->config.keep = false;
	expect_error(f, fixture_reopen(f), -EEXIST, "keep");
	f->config.keep = true;
	reopen_and_check(9);
}

TEST(each_rank_has_its_own_store)
{
	INIT(f, .place = PLACE_DISK, .keep = true);
	for (f->config.rank = 0; f->config.rank < 3; f->config.rank++) {
		reopen();
		STATE(f, t[0], NVS_EMPTY, false, 0);
		tensors_write(f, t, N, f->config.rank);
		fixture_shut(f);
	}
	f->config.rank = 1;
	reopen_and_check(1);
}

/* ---- Crashes ---- */

/* Runs `what` in a child and kills the child; the parent's engine must be closed. */
static void crash_after(void (*what)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		MUST(!fixture_reopen(f));
		what();
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void commit_then_overwrite_two(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensors_store(f, t, N, 0);
	MUST(!nvs_engine_commit(f->engine, NULL));
	tensor_store(f, t[1], 100);
	tensor_store(f, t[6], 100);
}

TEST(committed_data_survives_a_crash)
{
	const struct setup setups[] = {{.place = PLACE_DISK, .keep = true},
				       {.place = PLACE_TMPFS, .keep = true, .verify = true},
				       {.place = PLACE_DISK,
					.keep = true,
					.npaths = 3,
					.stripe_size = 3 * 4096,
					.max_in_cpu = NONE_STAYS}};

	for (size_t i = 0; i < LENGTH(setups); i++) {
		fixture_init(f, &setups[i]);
		crash_after(commit_then_overwrite_two);
		reopen_and_check(0);
		tensors_write(f, t, N, 5);
		fixture_shut(f);
		reopen_and_check(5);
		fixture_close(f);
	}
}

/* Registers two of the tensors, commits them twice and writes them a third time. */
static void rewrite_two_of_all(void)
{
	struct nvs_tensor *one = tensor_add(f, "t1", lengths[1]);
	struct nvs_tensor *other = tensor_add(f, "t6", lengths[6]);

	for (uint64_t seed = 50; seed <= 70; seed += 10) {
		tensor_store(f, one, seed);
		tensor_store(f, other, seed);
		MUST(seed == 70 || !nvs_engine_commit(f->engine, NULL));
	}
}

TEST(unregistered_tensors_stay_as_committed)
{
	INIT(f, .place = PLACE_DISK, .keep = true);
	OK(f, fixture_reopen(f));
	register_and_write(5);
	fixture_shut(f);
	crash_after(rewrite_two_of_all);
	reopen();
	for (uint64_t i = 0; i < N; i++)
		tensor_compare(f, t[i], i == 1 || i == 6 ? 60 : 5 + i);
}

static void commit_and_rewrite_most(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensors_store(f, t, N, 7);
	MUST(!nvs_engine_commit(f->engine, NULL));
	for (uint64_t turn = 1; turn <= 3; turn++)
		for (uint64_t i = turn; i < N; i++)
			tensor_store(f, t[i], 1000 * turn + i);
}

TEST(a_store_does_not_grow_from_crash_to_crash)
{
	off_t nbytes = 0;

	INIT(f, .place = PLACE_DISK, .keep = true);
	for (int run = 0; run < 10; run++) {
		crash_after(commit_and_rewrite_most);
		if (!nbytes)
			nbytes = file_bytes("data");
		assert_int_equal(file_bytes("data"), nbytes);
	}
	reopen_and_check(7);
}

/* Registers and writes a new tensor of the same name, and one that fits into the freed extent. */
static void forget_and_register_again(void)
{
	struct nvs_tensor *again, *more;

	tensors_add(f, "t", lengths, N, t);
	tensor_store(f, t[6], 100);
	for (int i = 1; i <= 6; i += 5) {
		const char name[] = {'t', (char)('0' + i), 0}, other[] = {'u', (char)('0' + i), 0};

		MUST(!nvs_tensor_forget(f->engine, &t[i], 1, NULL));
		again = tensor_add(f, name, lengths[i]);
		more = tensor_add(f, other, lengths[i] / 4);
		tensor_store(f, again, 200);
		tensor_store(f, more, 300);
		tensor_store(f, more, 400);
	}
}

TEST(a_forgotten_tensor_stays_until_a_commit)
{
	off_t nbytes;

	INIT(f, .place = PLACE_DISK, .keep = true);
	crash_after(commit_then_overwrite_two);
	crash_after(forget_and_register_again);
	reopen_and_check(0);
	/* A commit removes it and frees its extent. */
	nbytes = file_bytes("data");
	for (int turn = 0; turn < 10; turn++) {
		OK(f, nvs_tensor_forget(f->engine, &t[6], 1, &f->error));
		OK(f, nvs_engine_commit(f->engine, &f->error));
		t[6] = tensor_add(f, "t6", lengths[6]);
		STATE(f, t[6], NVS_EMPTY, false, 0);
		tensor_write(f, t[6], 6);
		OK(f, nvs_engine_commit(f->engine, &f->error));
	}
	assert_int_equal(file_bytes("data"), nbytes);
	tensors_compare(f, t, N, 0);
}

/* ---- Writes that fail ---- */

/* A write of t[6] from external memory, which fails. */
static void fail_to_write_from(const void *data)
{
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out_from(f->engine, &t[6], &data, 1, &f->error));
	FAILS(f, -EIO, "writing", sole_wait, &t[6], 1, -1);
}

static void writes_fail_after_a_commit(bool verify)
{
	static char memory[300000];

	OPEN(f, .place = PLACE_DISK, .keep = true, .verify = verify, .simulated = true);
	register_and_write(1);
	OK(f, nvs_engine_commit(f->engine, &f->error));

	/* From external memory: the tensor keeps its committed contents until a write succeeds. */
	fail_to_write_from(memory);
	STATE(f, t[6], NVS_ON_DRIVE, false, 0);
	tensor_compare(f, t[6], 1 + 6);
	fill(memory, sizeof(memory), 51);
	tensor_from(f, t[6], memory);
	tensor_compare(f, t[6], 51);
	OK(f, nvs_tensor_swap_out(f->engine, &t[6], 1, &f->error));
	fail_to_write_from(memory);
	STATE(f, t[6], NVS_EMPTY, false, 0);

	/* From the pool: the tensor stays resident; a lease released clean restores the contents.
	 */
	tensor_write(f, t[1], 60);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	OK(f, nvs_tensor_swap_out(f->engine, &t[1], 1, &f->error));
	FAILS(f, -EIO, "t1: writing", sole_wait, &t[1], 1, -1);
	STATE(f, t[1], NVS_RESIDENT, true, 0);
	tensor_compare(f, t[1], 60);
	OK(f, sole_pin(f->engine, &t[1], 1, -1, &f->error));
	OK(f, sole_release(f->engine, &t[1], 1, NVS_CLEAN, &f->error));
	tensor_compare(f, t[1], 60);
	tensor_write(f, t[1], 61);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_compare(f, t[1], 61);
	fixture_close(f);
}

TEST(a_failed_write_leaves_committed_data)
{
	writes_fail_after_a_commit(false);
	writes_fail_after_a_commit(true);
}

TEST(damage_on_the_drive_is_detected_when_read)
{
	uint64_t offset;

	OPEN(f, .place = PLACE_DISK, .keep = true);
	register_and_write(1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	offset = info_of(f, t[1]).store_offset;
	fixture_shut(f);
	store_flip(f, offset + 50000);
	/* A run that does not read the tensor keeps its checksum. */
	reopen();
	tensor_write(f, t[0], 1);
	fixture_shut(f);
	reopen();
	for (uint64_t i = 0; i < N; i++)
		if (i != 1)
			tensor_compare(f, t[i], 1 + i);
	OK(f, sole_swap_in(f->engine, &t[1], 1, 0, &f->error));
	FAILS(f, -EBADMSG, "t1", sole_wait, &t[1], 1, -1);
}

/* ---- Crashes on every write path ---- */

static void commit_only(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensors_write(f, t, N, 30);
	MUST(!nvs_engine_commit(f->engine, NULL));
}

static void write_by_swapping_out(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensor_store(f, t[1], 100);
}

static void write_from_external_memory(void)
{
	static char memory[70000];

	tensors_add(f, "t", lengths, N, t);
	fill(memory, sizeof(memory), 100);
	tensor_from(f, t[1], memory);
}

static void write_to_make_room(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensor_write(f, t[1], 100);
	MUST(!sole_swap_in(f->engine, &t[5], 2, -1, NULL));
	MUST(info_of(f, t[1]).state == NVS_ON_DRIVE);
}

static void write_by_a_commit_that_fails(void)
{
	tensors_add(f, "t", lengths, N, t);
	tensor_write(f, t[1], 100);
	tensor_write(f, t[6], 100);
	sim_fail(f->sim, NVS_WRITE, 0, EIO, 1);
	MUST(nvs_engine_commit(f->engine, NULL) == -EIO);
	for (uint64_t i = 0; i < N; i++)
		tensor_store(f, t[i], 200);
}

static void read_all(void)
{
	tensors_add(f, "t", lengths, N, t);
	for (int i = 0; i < N; i++)
		tensors_load(f, &t[i], 1);
}

TEST(no_write_path_touches_committed_data)
{
	void (*const ways[])(void) = {write_by_swapping_out, write_from_external_memory,
				      write_to_make_room, write_by_a_commit_that_fails, read_all};

	for (size_t i = 0; i < LENGTH(ways); i++) {
		INIT(f, .place = PLACE_DISK, .keep = true, .verify = true, .pool_bytes = 400 * KIB,
		     .simulated = true);
		crash_after(commit_only);
		crash_after(ways[i]);
		reopen_and_check(30);
		fixture_close(f);
	}
}

/* Holds a store until the parent closes the pipe. */
static void hold_the_store(const int ready[2], const int done[2])
{
	char byte = 0;

	close(done[1]);
	MUST(!fixture_reopen(f));
	MUST(write(ready[1], &byte, 1) == 1);
	MUST(read(done[0], &byte, 1) == 0);
	_exit(nvs_engine_close(f->engine, NULL) ? 1 : 0);
}

TEST(a_store_locked_by_another_process_is_refused)
{
	int status, ready[2], done[2];
	char byte;
	pid_t pid;

	INIT(f, .place = PLACE_DISK);
	assert_int_equal(pipe(ready) + pipe(done), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		hold_the_store(ready, done);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	expect_error(f, fixture_reopen(f), -EBUSY, "has locked the store at");
	f->config.rank = 1;
	OK(f, fixture_reopen(f));
	fixture_shut(f);
	close(done[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	f->config.rank = 0;
	OK(f, fixture_reopen(f));
	close(ready[0]);
	close(ready[1]);
	close(done[0]);
}

TEST(a_temporary_store_leaves_nothing_behind)
{
	const struct setup setups[] = {{.npaths = 1},
				       {.npaths = 2},
				       {.npaths = 3},
				       {.device = NVS_DEVICE_CPU, .keep = true, .verify = true}};

	for (size_t k = 0; k < LENGTH(setups); k++) {
		fixture_open(f, &setups[k]);
		tensors_add(f, "t", lengths, N, t);
		for (uint64_t turn = 0; turn < 3; turn++) {
			tensors_write(f, t, N, turn);
			OK(f, nvs_tensor_swap_out(f->engine, t, N, &f->error));
			tensors_compare(f, t, N, turn);
		}
		/* Without keep a commit only writes back. */
		OK(f, nvs_engine_commit(f->engine, &f->error));
		assert_int_equal(file_bytes("manifest.0"), -1);
		fixture_shut(f);
		for (unsigned i = 0; i < f->setup.npaths; i++)
			assert_int_equal(entries_of(f->paths[i]), 0);
		fixture_close(f);
	}
}

/* ---- Opening ---- */

TEST(refuses_settings_that_cannot_work)
{
	INIT(f, .place = PLACE_DISK);
	f->config.offload[NVS_OFFLOAD_PARAM].device = NVS_DEVICE_NONE;
	expect_error(f, fixture_reopen(f), -EINVAL, "offload_param.device is none");
	expect_error(f, nvs_engine_open(&f->engine, &f->config, NVS_OFFLOAD_OPTIMIZER, &f->error),
		     -EINVAL, "offload_optimizer.device is none");
	f->config.offload[NVS_OFFLOAD_PARAM].device = NVS_DEVICE_NVME;
	f->config.aio.use_gds = true;
	expect_error(f, fixture_reopen(f), -ENOTSUP, "use_gds");
	f->config.aio.use_gds = false;
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_count = 0;
	expect_error(f, fixture_reopen(f), -EINVAL, "the pool would be empty");
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_count = 1000;
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_size = GIB;
	expect_error(f, fixture_reopen(f), -ENOMEM, "buffer_count x buffer_size");
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_count = UINT32_MAX;
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_size = UINT64_MAX / 2;
	expect_error(f, fixture_reopen(f), -EINVAL, "exceed 2^64 bytes");
	f->config.scrub = true;
	expect_error(f, fixture_reopen(f), -EINVAL, "set nvswap.verify");
	f->config.scrub = false;
	assert_int_equal(entries_of(f->paths[0]), 0);
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	f->config.offload[NVS_OFFLOAD_PARAM].buffer_size = MIB;
	OK(f, fixture_reopen(f));
}

TEST(refuses_a_pool_beyond_the_memlock_limit)
{
	struct rlimit limit, none;
	uid_t user = geteuid();

	if (SANITIZED) {
		print_message("a sanitizer lets every mlock succeed\n");
		skip();
	}
	INIT(f, .place = PLACE_DISK, .device = NVS_DEVICE_CPU);
	assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
	none = (struct rlimit){0, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
	/* Root may lock any memory. */
	assert_int_equal(user ? 0 : seteuid(65534), 0);
	f->config.offload[NVS_OFFLOAD_PARAM].pin_memory = true;
	expect_error(f, fixture_reopen(f), -ENOMEM, "ulimit -l");
	f->config.offload[NVS_OFFLOAD_PARAM].pin_memory = false;
	OK(f, fixture_reopen(f));
	tensor_store(f, tensor_add(f, "t", 100000), 1);
	tensor_compare(f, nvs_tensor_find(f->engine, "t"), 1);
	fixture_shut(f);
	assert_int_equal(seteuid(user), 0);
	assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* Also on the path of the parameters, which most users name in both blocks. */
TEST(the_optimizer_has_its_own_store_and_pool)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct fixture param;
	struct nvs_tensor *tensor, *weights;
	const char *path;

	INIT(f, .place = PLACE_DISK);
	path = f->paths[0];
	OK(f, nvs_config_set_paths(&f->config, NVS_OFFLOAD_OPTIMIZER, &path, 1, &f->error));
	f->config.offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 3;
	f->config.sub_group_size = 100000;
	f->config.offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = 100000;
	OK(f, nvs_engine_open(&f->engine, &f->config, NVS_OFFLOAD_OPTIMIZER, &f->error));
	nvs_engine_get_stats(f->engine, &stats);
	assert_true(stats.pool.bytes >= nvs_config_pool_bytes(&f->config, NVS_OFFLOAD_OPTIMIZER));
	param = *f;
	OK(&param, fixture_reopen(&param));
	tensor = tensor_add(f, "same", 300000);
	weights = tensor_add(&param, "same", 300000);
	tensor_store(f, tensor, 1);
	tensor_store(&param, weights, 2);
	tensor_compare(f, tensor, 1);
	tensor_compare(&param, weights, 2);
	fixture_shut(&param);
	tensor = tensor_add(f, "big", 16 * MIB);
	FAILS(f, -E2BIG, "offload_optimizer: buffer_count 3 x sub_group_size 100000 elements",
	      sole_pin, &tensor, 1, 0);
}

/* Changes the tensor's first byte on the drive and tells whether reading it finds that. */
static bool a_flip_within_the_run_is_found(enum verify verify, bool keep)
{
	struct nvs_tensor *tensor;
	int rc;

	INIT(f, .place = PLACE_TMPFS, .keep = keep);
	f->config.verify = verify;
	OK(f, fixture_reopen(f));
	tensor = tensor_add(f, "t", 70000);
	tensor_store(f, tensor, 1);
	OK(f, nvs_engine_commit(f->engine, &f->error));
	tensor_flip(f, tensor, 0);
	OK(f, sole_swap_in(f->engine, &tensor, 1, -1, &f->error));
	rc = sole_wait(f->engine, &tensor, 1, -1, &f->error);
	assert_true(!rc || rc == -EBADMSG);
	if (!rc)
		OK(f, sole_release(f->engine, &tensor, 1, NVS_CLEAN, &f->error));
	fixture_close(f);
	return rc;
}

TEST(a_kept_store_is_verified_unless_told_otherwise)
{
	assert_true(a_flip_within_the_run_is_found(VERIFY_IF_KEPT, true));
	assert_false(a_flip_within_the_run_is_found(VERIFY_IF_KEPT, false));
	assert_true(a_flip_within_the_run_is_found(VERIFY_ON, false));
	assert_false(a_flip_within_the_run_is_found(VERIFY_OFF, true));
}
