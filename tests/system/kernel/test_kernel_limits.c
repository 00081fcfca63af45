/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes at a limit (open files, threads, address space, file size), or without a permitted
 * system call that they use already. Each is an error that names the limit, leaves nothing behind,
 * raises no signal, and never selects a slower engine silently.
 */
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "system/kernel/kernel_drive.h"

/* A child that hangs is killed after that time, and the test fails. */
#define GIVE_UP_S 120

#define TENSOR_BYTES (300 * KIB + 17)

struct child {
	const char *directory;
	enum nvs_ioengine ioengine;
	bool keep;
	long calls[2]; /* to deny; -1: no call */
	int denied_with;
	uid_t user; /* user to run as */
};

#define PASS_IN(where, work, ...)                                                                  \
	pass_in_child(work, &(struct child){.directory = (where), __VA_ARGS__},                    \
		      "the limit can't be set here")
#define PASS(work, ...) PASS_IN(temp_directory(), work, __VA_ARGS__)

static int open_in(struct nvs_engine **engine, const struct child *child, struct nvs_error *error)
{
	struct nvs_config config;
	int rc;

	alarm(GIVE_UP_S);
	config_init(&config);
	config.aio.ioengine = child->ioengine;
	config.aio.block_size = 64 * KIB;
	config.aio.thread_count = 2;
	config.param_dtype = NVS_F32;
	config.offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	config.offload[NVS_OFFLOAD_PARAM].buffer_size = MIB;
	config.keep = child->keep;
	config.verify = true;
	rc = nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, &child->directory, 1, error);
	rc = rc ?: nvs_engine_open(engine, &config, NVS_OFFLOAD_PARAM, error);
	config_free(&config);
	return rc;
}

static int add(struct nvs_engine *engine, const char *name, struct nvs_tensor **tensor,
	       struct nvs_error *error)
{
	const struct nvs_tensor_spec spec = U8_TENSOR(name, TENSOR_BYTES);

	return nvs_tensor_register(engine, &spec, 1, tensor, error);
}

/* Makes contents, released dirty, in the pool. */
static int make_contents(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t seed)
{
	EXPECT(!sole_pin(engine, &tensor, 1, -1, NULL));
	fill(nvs_tensor_data(tensor), TENSOR_BYTES, seed);
	EXPECT(!sole_release(engine, &tensor, 1, NVS_DIRTY, NULL));
	return CHILD_OK;
}

static int swap_out(struct nvs_engine *engine, struct nvs_tensor *tensor, struct nvs_error *error)
{
	int rc = nvs_tensor_swap_out(engine, &tensor, 1, error);

	return rc ?: sole_wait(engine, &tensor, 1, -1, error);
}

static int has_contents(struct nvs_engine *engine, struct nvs_tensor *tensor, uint64_t seed)
{
	EXPECT(!sole_swap_in(engine, &tensor, 1, -1, NULL));
	EXPECT(!sole_wait(engine, &tensor, 1, -1, NULL));
	EXPECT(filled(nvs_tensor_data(tensor), TENSOR_BYTES, seed));
	EXPECT(!sole_release(engine, &tensor, 1, NVS_CLEAN, NULL));
	return CHILD_OK;
}

static int swaps(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor;

	EXPECT(!add(engine, "t", &tensor, NULL));
	EXPECT(!make_contents(engine, tensor, 1));
	EXPECT(!swap_out(engine, tensor, NULL));
	return has_contents(engine, tensor, 1);
}

static int set_limit(int resource, uint64_t limit)
{
	struct rlimit limits;

	if (getrlimit(resource, &limits))
		return -errno;
	limits.rlim_cur = limit < limits.rlim_max ? limit : limits.rlim_max;
	return setrlimit(resource, &limits) ? -errno : 0;
}

#define LIMIT(resource, limit)                                                                     \
	do {                                                                                       \
		if (set_limit(resource, limit))                                                    \
			return CHILD_SKIPPED;                                                      \
	} while (0)

static int use_what_is_denied(void *arg)
{
	const struct child *child = arg;
	struct nvs_tensor *stored, *dirty;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	EXPECT(!open_in(&engine, child, &error));
	EXPECT(!add(engine, "stored", &stored, &error) && !add(engine, "dirty", &dirty, &error));
	EXPECT(!make_contents(engine, stored, 1) && !swap_out(engine, stored, &error));
	EXPECT(!make_contents(engine, dirty, 2));
	for (size_t i = 0; i < 2; i++)
		if (child->calls[i] >= 0 && deny_syscall(child->calls[i], child->denied_with))
			return CHILD_SKIPPED;

	for (int tries = 0; tries < 2; tries++) {
		EXPECT(swap_out(engine, dirty, &error) == -child->denied_with);
		EXPECT(error.code == -child->denied_with && !strcmp(error.subject, "dirty"));
		EXPECT(strstr(error.text, "writing") && strstr(error.text, "rank0/data"));
		nvs_tensor_get_info(engine, dirty, &info);
		EXPECT(info.state == NVS_RESIDENT && info.dirty);
		EXPECT(filled(nvs_tensor_data(dirty), TENSOR_BYTES, 2));
		EXPECT(!sole_swap_in(engine, &stored, 1, -1, &error));
		EXPECT(sole_wait(engine, &stored, 1, -1, &error) == -child->denied_with);
		EXPECT(!strcmp(error.subject, "stored") && strstr(error.text, "reading"));
		nvs_tensor_get_info(engine, stored, &info);
		EXPECT(info.state == NVS_ON_DRIVE && !info.pins);
	}
	EXPECT(!nvs_engine_close(engine, &error));
	return CHILD_OK;
}

TEST(an_engine_denied_its_calls_fails_transfers_and_can_be_closed)
{
	static const struct {
		enum nvs_ioengine ioengine;
		long calls[2];
	} denials[] = {
		{NVS_IOENGINE_IO_URING, {SYS_io_uring_enter, -1}},
		{NVS_IOENGINE_LIBAIO, {SYS_io_submit, -1}},
		{NVS_IOENGINE_LIBAIO, {SYS_io_submit, SYS_io_getevents}},
		{NVS_IOENGINE_POSIX, {SYS_pwritev2, SYS_preadv2}},
	};

	for (unsigned i = 0; i < 2 * LENGTH(denials); i++) {
		enum nvs_ioengine ioengine = denials[i / 2].ioengine;
		int error = i % 2 ? ENOSYS : EPERM;

		/* ENOSYS makes the posix engine try another call. */
		if (engine_works(ioengine) && (ioengine != NVS_IOENGINE_POSIX || error == EPERM))
			PASS(use_what_is_denied, .ioengine = ioengine,
			     .calls = {denials[i / 2].calls[0], denials[i / 2].calls[1]},
			     .denied_with = error);
	}
}

/* ---- Open files, threads and address space ---- */

static unsigned open_descriptors(void)
{
	unsigned n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static bool is_empty(const char *directory)
{
	struct stat st;
	char path[512];

	snprintf(path, sizeof(path), "%s/nvswap", directory);
	return stat(path, &st) && errno == ENOENT;
}

/* What an engine does that was opened below a limit. */
typedef int use_fn(const struct child *child, struct nvs_engine *engine);

/*
 * Opens with limits from `first` on, by `step`, until it has succeeded `enough` times. Each failure
 * has one of these codes, says why, and leaves nothing.
 */
static int open_below(const struct child *child, int resource, uint64_t first, uint64_t step,
		      unsigned enough, use_fn *use, const int codes[3], const char *says)
{
	enum { MOST = 1000 };
	unsigned failed = 0, opened = 0, before = open_descriptors();
	struct rlimit was, now;

	EXPECT(!getrlimit(resource, &was));
	for (unsigned i = 0; i < MOST && opened < enough; i++) {
		struct nvs_engine *engine = NULL;
		struct nvs_error error = {.size = sizeof(error)};
		int rc;

		LIMIT(resource, first + i * step);
		rc = open_in(&engine, child, &error);
		EXPECT(!getrlimit(resource, &now) && now.rlim_cur == first + i * step);
		if (rc) {
			EXPECT(rc == codes[0] || rc == codes[1] || rc == codes[2]);
			EXPECT(error.code == rc && *error.text && strstr(error.text, says));
			EXPECT(child->keep || is_empty(child->directory));
			failed++;
		} else {
			EXPECT(!use || use(child, engine) == CHILD_OK);
			EXPECT(!nvs_engine_close(engine, &error));
			opened++;
		}
		EXPECT(!setrlimit(resource, &was));
		EXPECT(open_descriptors() == before);
	}
	EXPECT(failed > 1 && opened == enough);
	return CHILD_OK;
}

static bool direct; /* whether an engine without a limit uses direct I/O */

static int is_as_good(const struct child *child, struct nvs_engine *engine)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_tensor *tensor;

	nvs_engine_get_stats(engine, &stats);
	EXPECT(stats.direct == direct);
	if (!child->keep)
		return swaps(engine);
	EXPECT(!add(engine, "t", &tensor, NULL));
	return has_contents(engine, tensor, 1);
}

/* From no descriptor at all to a few more than needed. A kept store has a tensor before. */
static int open_with_few_descriptors(void *arg)
{
	const struct child *child = arg;
	int first = dup(STDOUT_FILENO); /* the lowest that is free */
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_engine *engine;

	close(first);
	EXPECT(!open_in(&engine, child, &error));
	nvs_engine_get_stats(engine, &stats);
	direct = stats.direct;
	EXPECT(!child->keep || swaps(engine) == CHILD_OK);
	EXPECT(!nvs_engine_close(engine, &error));
	return open_below(child, RLIMIT_NOFILE, (uint64_t)first, 1, 3, is_as_good,
			  (const int[]){-EMFILE, -ENOTSUP, -EMFILE},
			  "too many open files: raise the limit (ulimit -n)");
}

TEST(too_few_open_files_are_an_error_and_never_a_worse_engine)
{
	for (enum nvs_ioengine i = NVS_IOENGINE_AUTO; i < NVS_IOENGINE_COUNT; i++) {
		if (i && (SANITIZED || !engine_works(i)))
			continue;
		PASS(open_with_few_descriptors, .ioengine = i);
		PASS(open_with_few_descriptors, .ioengine = i, .keep = true);
	}
}

/* io_uring needs a kernel thread for I/Os that would block; they fail if none can be made. */
static int swaps_or_says_why(const struct child *child, struct nvs_engine *engine)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_tensor *tensor;
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

	(void)child;
	EXPECT(!add(engine, "t", &tensor, NULL));
	EXPECT(!make_contents(engine, tensor, 1));
	rc = swap_out(engine, tensor, &error);
	if (rc) {
		EXPECT(rc == -ECANCELED && strstr(error.text, "ulimit -u"));
		nvs_tensor_get_info(engine, tensor, &info);
		EXPECT(info.state == NVS_RESIDENT && info.dirty);
	}
	EXPECT(!set_limit(RLIMIT_NPROC, RLIM_INFINITY));
	EXPECT(!rc || !swap_out(engine, tensor, &error));
	return has_contents(engine, tensor, 1);
}

/* Threads that have ended can count for a moment longer. */
static int open_with_few_threads(void *arg)
{
	const struct child *child = arg;

	if (setresgid(child->user, child->user, child->user) ||
	    setresuid(child->user, child->user, child->user))
		return CHILD_SKIPPED;
	return open_below(child, RLIMIT_NPROC, 0, 1, 3, swaps_or_says_why,
			  (const int[]){-EAGAIN, -ENOTSUP, -EAGAIN}, "start");
}

TEST(too_few_threads_are_an_error_that_leaves_nothing)
{
	static const enum nvs_ioengine engines[] = {NVS_IOENGINE_AUTO, NVS_IOENGINE_POSIX};
	/* A user without processes, because the limit counts all processes of a user. */
	uid_t user = 20000 + (uid_t)(getpid() % 40000);

	if (geteuid())
		SKIP("only root can become a user who has no other process");
	for (size_t i = 0; i < LENGTH(engines); i++) {
		const char *directory = memory_directory();

		if (!directory)
			SKIP("there is no directory that another user can reach");
		assert_int_equal(chown(directory, user, user), 0);
		PASS_IN(directory, open_with_few_threads, .ioengine = engines[i], .user = user);
	}
}

static int open_with_little_memory(void *arg)
{
	FILE *file = fopen("/proc/self/statm", "re");
	uint64_t pages;

	EXPECT(file && fscanf(file, "%" SCNu64, &pages) == 1);
	fclose(file);
	return open_below(arg, RLIMIT_AS, pages * (uint64_t)sysconf(_SC_PAGESIZE), MIB, 1, NULL,
			  (const int[]){-ENOMEM, -EAGAIN, -ENOTSUP}, "");
}

TEST(too_little_address_space_is_an_error_that_leaves_nothing)
{
	if (SANITIZED)
		SKIP("a sanitizer needs the whole address space");
	PASS(open_with_little_memory, .keep = false);
}

/* ---- The size of a file ---- */

/* With the default action of SIGXFSZ, which ends the process. */
static int reserve_more_than_a_file_may_have(void *arg)
{
	const struct child *child = arg;
	const struct nvs_tensor_spec much = U8_TENSOR("much", 3 * MIB);
	struct nvs_tensor *tensor, *other;
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};
	struct rlimit was;

	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!getrlimit(RLIMIT_FSIZE, &was));
	LIMIT(RLIMIT_FSIZE, 512 * KIB);
	EXPECT(open_in(&engine, child, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "512 KiB"));
	EXPECT(is_empty(child->directory));

	EXPECT(!set_limit(RLIMIT_FSIZE, 3 * MIB));
	EXPECT(!open_in(&engine, child, &error));
	EXPECT(!add(engine, "t", &tensor, &error));
	EXPECT(nvs_tensor_register(engine, &much, 1, &other, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "3 MiB"));
	EXPECT(strstr(error.text, "rank0/data") && !nvs_tensor_find(engine, "much"));
	EXPECT(!make_contents(engine, tensor, 3) && !swap_out(engine, tensor, &error));
	EXPECT(has_contents(engine, tensor, 3) == CHILD_OK);
	EXPECT(!setrlimit(RLIMIT_FSIZE, &was));
	EXPECT(!nvs_tensor_register(engine, &much, 1, &other, &error));
	EXPECT(!nvs_engine_close(engine, &error));
	return CHILD_OK;
}

TEST(a_limit_on_file_sizes_is_an_error_with_a_remedy_and_no_signal)
{
	PASS(reserve_more_than_a_file_may_have, .keep = false);
	PASS(reserve_more_than_a_file_may_have, .keep = true);
}

/* Writes beyond the limit fail, or raise the signal, also where the file is as long already. */
static int open_a_store_that_is_too_large(void *arg)
{
	const struct child *child = arg;
	struct nvs_tensor *tensor;
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!open_in(&engine, child, &error) && !add(engine, "t", &tensor, &error));
	EXPECT(!make_contents(engine, tensor, 1) && !nvs_engine_close(engine, &error));
	LIMIT(RLIMIT_FSIZE, 512 * KIB);
	EXPECT(open_in(&engine, child, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "rank0/data"));
	return CHILD_OK;
}

TEST(a_kept_store_above_the_limit_on_file_sizes_is_refused)
{
	PASS(open_a_store_that_is_too_large, .keep = true);
}

static int export_more_than_a_file_may_have(void *arg)
{
	const struct child *child = arg;
	const char *path = path_in(child->directory, "model.safetensors");
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!open_in(&engine, child, &error) && !add(engine, "t", &item.tensor, &error));
	EXPECT(!make_contents(engine, item.tensor, 1));
	LIMIT(RLIMIT_FSIZE, 128 * KIB);
	EXPECT(nvs_checkpoint_export(engine, &item, 1, path, NULL, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "128 KiB"));
	EXPECT(access(path_in(child->directory, "model.safetensors.partial"), F_OK));
	EXPECT(!nvs_engine_close(engine, &error));
	return CHILD_OK;
}

TEST(an_export_above_the_limit_on_file_sizes_is_an_error_with_a_remedy)
{
	PASS(export_more_than_a_file_may_have, .keep = false);
}

EACH_TEST(NULL, cleanup)
