/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes at a limit (open files, threads, address space, file size), or without a permitted
 * system call that they use already. Each is an error that names the limit, leaves nothing behind,
 * raises no signal, and never selects a slower engine silently.
 */
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "aio/aio.h"
#include "aio/engines/engine.h"
#include "config/config.h"
#include "swap/swap_fixture.h"

/* A child that hangs is killed after that time, and the test fails. */
#define GIVE_UP_S 120

#define TENSOR_BYTES (300 * KIB + 17)
#define NO_LIMIT     "the limit can't be set here"

struct child {
	const char *directory;
	enum nvs_ioengine ioengine;
	bool keep;
	unsigned calls; /* index of the denied calls in the test's table */
	int denied_with;
	uid_t user; /* user to run as */
};

static int open_in(struct nvs_engine **engine, const struct child *child, struct nvs_error *error)
{
	struct nvs_config config;
	int rc;

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
	if (!rc)
		rc = nvs_engine_open(engine, &config, NVS_OFFLOAD_PARAM, error);
	config_free(&config);
	return rc;
}

static int add(struct nvs_engine *engine, const char *name, struct nvs_tensor **tensor,
	       struct nvs_error *error)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = name, .dtype = NVS_U8, .numel = TENSOR_BYTES};

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

	return rc ? rc : sole_wait(engine, &tensor, 1, -1, error);
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

/* ---- System calls that are denied while in use ---- */

struct denial {
	enum nvs_ioengine ioengine;
	long calls[2]; /* -1: no call */
};

static const struct denial denials[] = {
	{NVS_IOENGINE_IO_URING, {SYS_io_uring_enter, -1}},
	{NVS_IOENGINE_LIBAIO, {SYS_io_submit, -1}},
	{NVS_IOENGINE_LIBAIO, {SYS_io_submit, SYS_io_getevents}},
	{NVS_IOENGINE_POSIX, {SYS_pwritev2, SYS_preadv2}},
};

static int use_what_is_denied(void *arg)
{
	const struct child *child = arg;
	struct nvs_tensor *stored, *dirty;
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	alarm(GIVE_UP_S);
	EXPECT(!open_in(&engine, child, &error));
	EXPECT(!add(engine, "stored", &stored, &error) && !add(engine, "dirty", &dirty, &error));
	EXPECT(!make_contents(engine, stored, 1) && !swap_out(engine, stored, &error));
	EXPECT(!make_contents(engine, dirty, 2));
	for (size_t i = 0; i < 2; i++)
		if (denials[child->calls].calls[i] >= 0 &&
		    deny_syscall(denials[child->calls].calls[i], child->denied_with))
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
	static const int errors[] = {EPERM, ENOSYS};
	char reason[192];

	for (unsigned i = 0; i < LENGTH(denials); i++)
		for (size_t j = 0; j < LENGTH(errors); j++) {
			struct child child = {.directory = temp_directory(),
					      .ioengine = denials[i].ioengine,
					      .calls = i,
					      .denied_with = errors[j]};

			/* ENOSYS makes the posix engine try another call. */
			if (child.ioengine == NVS_IOENGINE_POSIX && errors[j] == ENOSYS)
				continue;
			if (!ioengine_try(child.ioengine, reason, sizeof(reason)))
				pass_in_child(use_what_is_denied, &child, NO_LIMIT);
		}
}

/* ---- Open files ---- */

static int lowest_free_descriptor(void)
{
	int fd = dup(STDOUT_FILENO);

	if (fd >= 0)
		close(fd);
	return fd;
}

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

/* An unlimited engine, for comparison; a kept store has a tensor from then on. */
static int open_unlimited(const struct child *child, bool *direct)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	EXPECT(!open_in(&engine, child, &error));
	nvs_engine_get_stats(engine, &stats);
	*direct = stats.direct;
	EXPECT(!child->keep || swaps(engine) == CHILD_OK);
	EXPECT(!nvs_engine_close(engine, &error));
	return CHILD_OK;
}

static int is_as_good(const struct child *child, struct nvs_engine *engine, bool direct)
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

/* From no descriptor at all to a few more than needed. */
static int open_with_few_descriptors(void *arg)
{
	enum { MOST = 40, ENOUGH = 3 };
	const struct child *child = arg;
	int first = lowest_free_descriptor();
	unsigned failed = 0, opened = 0, before;
	struct rlimit was, now;
	bool direct;

	alarm(GIVE_UP_S);
	EXPECT(!getrlimit(RLIMIT_NOFILE, &was));
	EXPECT(open_unlimited(child, &direct) == CHILD_OK);
	before = open_descriptors();
	for (int more = 0; more < MOST && opened < ENOUGH; more++) {
		struct nvs_engine *engine = NULL;
		struct nvs_error error = {.size = sizeof(error)};
		int rc;

		if (set_limit(RLIMIT_NOFILE, (uint64_t)(first + more)))
			return CHILD_SKIPPED;
		rc = open_in(&engine, child, &error);
		EXPECT(!getrlimit(RLIMIT_NOFILE, &now) && now.rlim_cur == (rlim_t)(first + more));
		if (rc) {
			EXPECT(rc == -EMFILE || rc == -ENOTSUP);
			EXPECT(error.code == rc &&
			       strstr(error.text,
				      "too many open files: raise the limit (ulimit -n)"));
			EXPECT(child->keep || is_empty(child->directory));
			failed++;
		} else {
			EXPECT(is_as_good(child, engine, direct) == CHILD_OK);
			EXPECT(!nvs_engine_close(engine, &error));
			opened++;
		}
		EXPECT(!setrlimit(RLIMIT_NOFILE, &was));
		EXPECT(open_descriptors() == before);
	}
	EXPECT(failed > 2 && opened == ENOUGH);
	return CHILD_OK;
}

TEST(too_few_open_files_are_an_error_and_never_a_worse_engine)
{
	static const enum nvs_ioengine engines[] = {NVS_IOENGINE_AUTO, NVS_IOENGINE_IO_URING,
						    NVS_IOENGINE_LIBAIO, NVS_IOENGINE_POSIX};
	char reason[192];

	for (unsigned i = 0; i < 2 * (SANITIZED ? 1 : LENGTH(engines)); i++) {
		struct child child = {
			.directory = temp_directory(), .ioengine = engines[i / 2], .keep = i % 2};

		if (!child.ioengine || !ioengine_try(child.ioengine, reason, sizeof(reason)))
			pass_in_child(open_with_few_descriptors, &child, NO_LIMIT);
	}
}

/* ---- Threads ---- */

/* io_uring needs a kernel thread for I/Os that would block; they fail if none can be made. */
static int swaps_or_says_why(struct nvs_engine *engine)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_tensor *tensor;
	struct nvs_error error = {.size = sizeof(error)};
	int rc;

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

static int open_with_few_threads(void *arg)
{
	enum { TIMES = 3, ENOUGH = 1000 };
	const struct child *child = arg;
	unsigned failed = 0, opened = 0, before;

	alarm(GIVE_UP_S);
	if (setresgid(child->user, child->user, child->user) ||
	    setresuid(child->user, child->user, child->user))
		return CHILD_SKIPPED;
	before = open_descriptors();
	/* Threads that have ended can count for a moment longer. */
	for (uint64_t limit = 0; opened < TIMES && limit < ENOUGH; limit++) {
		struct nvs_engine *engine = NULL;
		struct nvs_error error = {.size = sizeof(error)};
		int rc;

		if (set_limit(RLIMIT_NPROC, limit))
			return CHILD_SKIPPED;
		rc = open_in(&engine, child, &error);
		if (rc) {
			EXPECT(rc == -EAGAIN || rc == -ENOTSUP);
			EXPECT(error.code == rc && strstr(error.text, "start"));
			EXPECT(is_empty(child->directory));
			failed++;
		} else {
			EXPECT(swaps_or_says_why(engine) == CHILD_OK);
			EXPECT(!nvs_engine_close(engine, &error));
			opened++;
		}
		EXPECT(open_descriptors() == before);
	}
	EXPECT(failed > 1 && opened == TIMES);
	return CHILD_OK;
}

TEST(too_few_threads_are_an_error_that_leaves_nothing)
{
	static const enum nvs_ioengine engines[] = {NVS_IOENGINE_AUTO, NVS_IOENGINE_POSIX};

	if (geteuid())
		SKIP("only root can become a user who has no other process");
	for (size_t i = 0; i < LENGTH(engines); i++) {
		/* A user without processes, because the limit counts all processes of a user. */
		struct child child = {.directory = memory_directory(),
				      .ioengine = engines[i],
				      .user = 20000 + (uid_t)(getpid() % 40000)};

		if (!child.directory)
			SKIP("there is no directory that another user can reach");
		assert_int_equal(chown(child.directory, child.user, child.user), 0);
		pass_in_child(open_with_few_threads, &child, NO_LIMIT);
	}
}

/* ---- Address space ---- */

static uint64_t address_space(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long pages = 0;

	if (file) {
		(void)!fscanf(file, "%llu", &pages);
		fclose(file);
	}
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int open_with_little_memory(void *arg)
{
	enum { STEPS = 100 };
	const struct child *child = arg;
	uint64_t used = address_space();
	unsigned failed = 0, step = 0;
	int rc = -ENOMEM;

	alarm(GIVE_UP_S);
	for (; rc && step < STEPS; step++) {
		struct nvs_engine *engine = NULL;
		struct nvs_error error = {.size = sizeof(error)};

		if (set_limit(RLIMIT_AS, used + step * MIB))
			return CHILD_SKIPPED;
		rc = open_in(&engine, child, &error);
		if (rc) {
			EXPECT(rc == -ENOMEM || rc == -EAGAIN || rc == -ENOTSUP);
			EXPECT(error.code == rc && error.text[0]);
			EXPECT(is_empty(child->directory));
			failed++;
		} else {
			EXPECT(!nvs_engine_close(engine, &error));
		}
	}
	EXPECT(failed > 1 && step < STEPS);
	return CHILD_OK;
}

TEST(too_little_address_space_is_an_error_that_leaves_nothing)
{
	struct child child = {.directory = temp_directory()};

	if (SANITIZED)
		SKIP("a sanitizer needs the whole address space");
	pass_in_child(open_with_little_memory, &child, NO_LIMIT);
}

/* ---- The size of a file ---- */

/* With the default action of SIGXFSZ, which ends the process. */
static int reserve_more_than_a_file_may_have(void *arg)
{
	const struct child *child = arg;
	const struct nvs_tensor_spec much = {
		.size = sizeof(much), .name = "much", .dtype = NVS_U8, .numel = 3 * MIB};
	struct nvs_tensor *tensor, *other;
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};
	struct rlimit was;

	alarm(GIVE_UP_S);
	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!getrlimit(RLIMIT_FSIZE, &was));
	if (set_limit(RLIMIT_FSIZE, 512 * KIB))
		return CHILD_SKIPPED;
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
	for (int keep = 0; keep < 2; keep++) {
		struct child child = {.directory = temp_directory(), .keep = keep};

		pass_in_child(reserve_more_than_a_file_may_have, &child, NO_LIMIT);
	}
}

/* Writes beyond the limit fail, or raise the signal, also where the file is as long already. */
static int open_a_store_that_is_too_large(void *arg)
{
	const struct child *child = arg;
	struct nvs_tensor *tensor;
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	alarm(GIVE_UP_S);
	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!open_in(&engine, child, &error) && !add(engine, "t", &tensor, &error));
	EXPECT(!make_contents(engine, tensor, 1) && !nvs_engine_close(engine, &error));
	if (set_limit(RLIMIT_FSIZE, 512 * KIB))
		return CHILD_SKIPPED;
	EXPECT(open_in(&engine, child, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "rank0/data"));
	return CHILD_OK;
}

TEST(a_kept_store_above_the_limit_on_file_sizes_is_refused)
{
	struct child child = {.directory = temp_directory(), .keep = true};

	pass_in_child(open_a_store_that_is_too_large, &child, NO_LIMIT);
}

static int export_more_than_a_file_may_have(void *arg)
{
	const struct child *child = arg;
	const char *path = path_in(child->directory, "model.safetensors");
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_engine *engine;
	struct nvs_error error = {.size = sizeof(error)};

	alarm(GIVE_UP_S);
	signal(SIGXFSZ, SIG_DFL);
	EXPECT(!open_in(&engine, child, &error) && !add(engine, "t", &item.tensor, &error));
	EXPECT(!make_contents(engine, item.tensor, 1));
	if (set_limit(RLIMIT_FSIZE, 128 * KIB))
		return CHILD_SKIPPED;
	EXPECT(nvs_checkpoint_export(engine, &item, 1, path, NULL, &error) == -ENOSPC);
	EXPECT(strstr(error.text, "ulimit -f") && strstr(error.text, "128 KiB"));
	EXPECT(access(path_in(child->directory, "model.safetensors.partial"), F_OK));
	EXPECT(!nvs_engine_close(engine, &error));
	return CHILD_OK;
}

TEST(an_export_above_the_limit_on_file_sizes_is_an_error_with_a_remedy)
{
	struct child child = {.directory = temp_directory()};

	pass_in_child(export_more_than_a_file_may_have, &child, NO_LIMIT);
}

EACH_TEST(NULL, cleanup)
