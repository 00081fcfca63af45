/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes in which a seccomp filter kills the threads that move bytes, while they move some: the
 * process goes on without them. Every wait ends with an error that says so, nothing hangs, and
 * everything can be closed.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aio/engines/engine.h"
#include "config/config.h"
#include "support/sole_owner.h"
#include "support/support.h"
#include "support/tests.h"
#include "swap/swap_fixture.h"

/* A child that hangs is killed after that time, and the test fails. */
#define GIVE_UP_S 120

#define BLOCK  (64 * KIB)
#define BLOCKS 16

/* A call that kills its thread, and the engine that makes it. */
struct killing {
	enum nvs_ioengine ioengine;
	long call;
	unsigned workers;
	const char *directory;
	bool file_first; /* the file is closed before the aio */
};

static const struct killing killings[] = {
	{NVS_IOENGINE_IO_URING, SYS_io_uring_enter, 1, .directory = NULL},
	{NVS_IOENGINE_IO_URING, SYS_io_uring_enter, 3, .directory = NULL},
	{NVS_IOENGINE_LIBAIO, SYS_io_submit, 1, .directory = NULL},
	{NVS_IOENGINE_LIBAIO, SYS_io_submit, 3, .directory = NULL},
	{NVS_IOENGINE_LIBAIO, SYS_io_getevents, 1, .directory = NULL},
	{NVS_IOENGINE_POSIX, SYS_pwritev2, 1, .directory = NULL},
};

static void run_each(int (*work)(void *arg), bool file_first)
{
	char reason[192];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	for (size_t i = 0; i < LENGTH(killings); i++) {
		struct killing killing = killings[i];
		int status;

		killing.directory = temp_directory();
		killing.file_first = file_first;
		if (ioengine_try(killing.ioengine, reason, sizeof(reason)))
			continue;
		status = in_child(work, &killing);
		if (status == CHILD_SKIPPED)
			SKIP("no seccomp filter can be set here");
		if (status != CHILD_OK)
			print_error("engine %d, call %ld, %u workers\n", (int)killing.ioengine,
				    killing.call, killing.workers);
		assert_int_equal(status, CHILD_OK);
	}
}

static struct nvs_config config_for(const struct killing *killing)
{
	struct nvs_config config;

	config_init(&config);
	config.aio.ioengine = killing->ioengine;
	config.aio.block_size = BLOCK;
	config.aio.thread_count = killing->workers;
	config.param_dtype = NVS_F32;
	config.offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	config.offload[NVS_OFFLOAD_PARAM].buffer_size = MIB;
	return config;
}

/* ---- Requests ---- */

struct job {
	struct nvs_aio *aio;
	struct nvs_file *file;
	char *data;
	struct nvs_request *requests[BLOCKS];
	struct nvs_error error;
};

static int job_open(struct job *job, const struct killing *killing)
{
	struct nvs_config config = config_for(killing);
	char path[512];

	*job = (struct job){.error = {.size = sizeof(job->error)}};
	snprintf(path, sizeof(path), "%s/file", killing->directory);
	job->data = aligned_alloc(BLOCK, (BLOCKS + 1) * BLOCK);
	EXPECT(job->data);
	fill(job->data, (BLOCKS + 1) * BLOCK, 1);
	EXPECT(!nvs_aio_open(&job->aio, &config, &job->error));
	EXPECT(!nvs_file_open(job->aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &job->file,
			      &job->error));
	config_free(&config);
	return CHILD_OK;
}

/* Every second one from memory that is not aligned, through a bounce buffer. */
static int write_all(struct job *job)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		EXPECT(!nvs_aio_pwrite(job->aio, job->file, job->data + i * BLOCK + i % 2, BLOCK,
				       i * BLOCK, &job->requests[i], &job->error));
	return CHILD_OK;
}

/* Each request failed or was moved before its worker was killed. */
static int close_all(struct job *job)
{
	unsigned killed = 0;

	for (unsigned i = 0; i < BLOCKS; i++) {
		int rc = nvs_aio_wait(job->aio, &job->requests[i], 1, -1, &job->error);

		EXPECT(!rc || rc == -EOWNERDEAD);
		killed += rc != 0;
		EXPECT(!nvs_request_close(job->requests[i]));
	}
	EXPECT(killed);
	EXPECT(strstr(job->error.text, "writing") && strstr(job->error.text, "/file"));
	EXPECT(strstr(job->error.text, "a seccomp filter killed the thread"));
	return CHILD_OK;
}

static int kill_during_requests(void *arg)
{
	const struct killing *killing = arg;
	uint64_t completed;
	struct job job;
	size_t index;
	int rc;

	alarm(GIVE_UP_S);
	EXPECT(job_open(&job, killing) == CHILD_OK);
	EXPECT(write_all(&job) == CHILD_OK);
	EXPECT(!nvs_aio_wait(job.aio, job.requests, BLOCKS, -1, &job.error));
	for (unsigned i = 0; i < BLOCKS; i++)
		EXPECT(!nvs_request_close(job.requests[i]));
	if (kill_on_syscall(killing->call))
		return CHILD_SKIPPED;
	/* The second time, no worker is left. */
	for (int tries = 0; tries < 2; tries++) {
		EXPECT(write_all(&job) == CHILD_OK);
		EXPECT(nvs_aio_wait(job.aio, job.requests, BLOCKS, -1, &job.error) == -EOWNERDEAD);
		EXPECT(close_all(&job) == CHILD_OK);
	}
	EXPECT(write_all(&job) == CHILD_OK);
	while ((rc = nvs_aio_wait(job.aio, job.requests, BLOCKS, 0, &job.error)) == -EAGAIN)
		usleep(1000);
	EXPECT(rc == -EOWNERDEAD);
	EXPECT(close_all(&job) == CHILD_OK);
	EXPECT(write_all(&job) == CHILD_OK);
	EXPECT(nvs_aio_wait_any(job.aio, job.requests, BLOCKS, -1, &index, &job.error) ==
	       -EOWNERDEAD);
	EXPECT(nvs_aio_wait_all(job.aio, -1, &completed, &job.error) == -EOWNERDEAD);
	EXPECT(completed == 5 * BLOCKS);
	nvs_file_close(job.file);
	EXPECT(!nvs_aio_close(job.aio));
	free(job.data);
	return CHILD_OK;
}

TEST(requests_of_a_killed_worker_fail_and_say_so)
{
	run_each(kill_during_requests, false);
}

/* Nothing waits for the requests, only the file, or the aio itself. */
static int kill_and_close(void *arg)
{
	const struct killing *killing = arg;
	struct job job;

	alarm(GIVE_UP_S);
	EXPECT(job_open(&job, killing) == CHILD_OK);
	if (kill_on_syscall(killing->call))
		return CHILD_SKIPPED;
	EXPECT(write_all(&job) == CHILD_OK);
	if (killing->file_first)
		nvs_file_close(job.file);
	EXPECT(!nvs_aio_close(job.aio));
	if (!killing->file_first)
		nvs_file_close(job.file);
	free(job.data);
	return CHILD_OK;
}

TEST(a_file_and_an_aio_whose_workers_are_killed_can_be_closed)
{
	run_each(kill_and_close, false);
	run_each(kill_and_close, true);
}

/* Memory is registered by the workers themselves. */
static int kill_and_register(void *arg)
{
	const struct killing *killing = arg;
	struct job job;

	alarm(GIVE_UP_S);
	EXPECT(job_open(&job, killing) == CHILD_OK);
	if (kill_on_syscall(killing->call))
		return CHILD_SKIPPED;
	EXPECT(write_all(&job) == CHILD_OK);
	(void)nvs_aio_register_memory(job.aio, job.data, BLOCKS * BLOCK);
	nvs_aio_unregister_memory(job.aio, job.data);
	EXPECT(nvs_aio_wait_all(job.aio, -1, NULL, &job.error) == -EOWNERDEAD);
	nvs_file_close(job.file);
	EXPECT(!nvs_aio_close(job.aio));
	free(job.data);
	return CHILD_OK;
}

TEST(registering_memory_does_not_wait_for_a_killed_worker)
{
	run_each(kill_and_register, false);
}

/* ---- Tensors ---- */

static int kill_during_swaps(void *arg)
{
	const struct killing *killing = arg;
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_U8, .numel = 300 * KIB + 17};
	struct nvs_config config = config_for(killing);
	struct nvs_tensor_info info = {.size = sizeof(info)};
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_engine *engine;
	struct nvs_tensor *tensor;

	alarm(GIVE_UP_S);
	EXPECT(!nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, &killing->directory, 1, &error));
	EXPECT(!nvs_engine_open(&engine, &config, NVS_OFFLOAD_PARAM, &error));
	EXPECT(!nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	EXPECT(!sole_pin(engine, &tensor, 1, -1, &error));
	fill(nvs_tensor_data(tensor), spec.numel, 1);
	EXPECT(!sole_release(engine, &tensor, 1, NVS_DIRTY, &error));
	if (kill_on_syscall(killing->call))
		return CHILD_SKIPPED;
	for (int tries = 0; tries < 2; tries++) {
		EXPECT(!nvs_tensor_swap_out(engine, &tensor, 1, &error));
		EXPECT(sole_wait(engine, &tensor, 1, -1, &error) == -EOWNERDEAD);
		EXPECT(!strcmp(error.subject, "t") && strstr(error.text, "killed the thread"));
		nvs_tensor_get_info(engine, tensor, &info);
		EXPECT(info.state == NVS_RESIDENT && info.dirty);
		EXPECT(filled(nvs_tensor_data(tensor), spec.numel, 1));
	}
	EXPECT(!nvs_engine_close(engine, &error));
	config_free(&config);
	return CHILD_OK;
}

TEST(a_tensor_whose_worker_is_killed_stays_in_the_pool)
{
	run_each(kill_during_swaps, false);
}

/* ---- The command ---- */

/* Kills the thread at a call with an argument of 2 or more: not when an engine tries whether it
 * works. */
static int kill_on_many(long call, unsigned argument)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 (uint32_t)offsetof(struct seccomp_data, args) + 8 * argument),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 2, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = LENGTH(filter), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
		return -errno;
	return 0;
}

/* Runs the command; returns only if it can't. */
static int exec_bench(const struct killing *killing)
{
	const char *build = getenv("BUILD");
	char program[512], filename[512], output[512], ioengine[32];

	alarm(GIVE_UP_S);
	snprintf(program, sizeof(program), "%s/nvswap", build ? build : "build");
	snprintf(filename, sizeof(filename), "--directory=%s", killing->directory);
	snprintf(ioengine, sizeof(ioengine), "--ioengine=%s",
		 killing->ioengine == NVS_IOENGINE_LIBAIO ? "libaio" : "io_uring");
	snprintf(output, sizeof(output), "%s/output", killing->directory);
	if (!freopen(output, "w", stderr) || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return CHILD_SKIPPED;
	execl(program, "nvswap", "bench", "--rw=write", "--size=64M", "--bs=64k", "--iodepth=16",
	      "--time_based", "--runtime=3600", filename, ioengine, NULL);
	return CHILD_SKIPPED;
}

static int run_bench(void *arg)
{
	const struct killing *killing = arg;

	return kill_on_many(killing->call, 1) ? CHILD_SKIPPED : exec_bench(killing);
}

static void check_said(const char *directory, const char *words)
{
	char path[512], text[4096];
	FILE *output;
	size_t n;

	snprintf(path, sizeof(path), "%s/output", directory);
	output = fopen(path, "r");
	assert_non_null(output);
	n = fread(text, 1, sizeof(text) - 1, output);
	text[n] = 0;
	fclose(output);
	if (!strstr(text, words))
		print_error("%s", text);
	assert_non_null(strstr(text, words));
}

TEST(a_job_whose_worker_is_killed_ends_and_says_so)
{
	static const struct killing jobs[] = {
		{NVS_IOENGINE_IO_URING, SYS_io_uring_enter, 1, .directory = NULL},
		{NVS_IOENGINE_LIBAIO, SYS_io_submit, 1, .directory = NULL},
	};
	char reason[192];

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	for (size_t i = 0; i < LENGTH(jobs); i++) {
		struct killing job = jobs[i];
		int status;

		job.directory = temp_directory();
		if (ioengine_try(job.ioengine, reason, sizeof(reason)))
			continue;
		status = in_child(run_bench, &job);
		if (status == CHILD_SKIPPED)
			SKIP("no seccomp filter can be set here");
		assert_int_equal(status, 1);
		check_said(job.directory, "killed the thread");
	}
}

/* ---- SIGTERM ---- */

/* The end of a child, which SIGALRM ends if it hangs. */
static int status_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

/* Tells on the pipe when all workers were killed and requests wait. Returns only if it can't. */
static int wait_without_workers(const struct killing *killing, int told)
{
	struct job job;

	alarm(GIVE_UP_S);
	EXPECT(job_open(&job, killing) == CHILD_OK);
	if (kill_on_syscall(killing->call))
		return CHILD_SKIPPED;
	EXPECT(write_all(&job) == CHILD_OK);
	EXPECT(nvs_aio_wait(job.aio, job.requests, BLOCKS, -1, &job.error) == -EOWNERDEAD);
	EXPECT(write(told, "k", 1) == 1);
	for (;;)
		pause();
}

TEST(sigterm_ends_a_process_whose_workers_were_killed)
{
	char reason[192], c;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	for (size_t i = 0; i < LENGTH(killings); i++) {
		struct killing killing = killings[i];
		int ends[2], status;
		pid_t pid;

		killing.directory = temp_directory();
		if (ioengine_try(killing.ioengine, reason, sizeof(reason)))
			continue;
		assert_int_equal(pipe(ends), 0);
		fflush(NULL);
		pid = fork();
		if (!pid)
			_exit(wait_without_workers(&killing, ends[1]));
		close(ends[1]);
		if (read(ends[0], &c, 1) == 1)
			assert_int_equal(kill(pid, SIGTERM), 0);
		close(ends[0]);
		status = status_of(pid);
		if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_SKIPPED)
			SKIP("no seccomp filter can be set here");
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
	}
}

/* The state of a process, as in /proc/PID/stat; '-' if there is none. */
static char state_of(pid_t pid)
{
	char path[64], text[256] = "", *name_end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "r");
	if (!file)
		return '-';
	(void)!fgets(text, sizeof(text), file);
	fclose(file);
	name_end = strrchr(text, ')');
	return name_end ? name_end[2] : '-';
}

static pid_t child_of(pid_t pid)
{
	char path[64];
	FILE *file;
	int child = 0;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
	file = fopen(path, "r");
	if (!file || fscanf(file, "%d", &child) != 1)
		child = 0;
	if (file)
		fclose(file);
	return child;
}

/* A job whose main thread is killed when it makes its file; other threads of its live on. */
static int run_job_without_main(void *arg)
{
	const struct killing *killing = arg;

	if (kill_on_syscall(SYS_fallocate))
		return CHILD_SKIPPED;
	return exec_bench(killing);
}

TEST(a_job_whose_main_thread_is_killed_ends_and_says_so)
{
	struct killing job = {.ioengine = NVS_IOENGINE_LIBAIO, .directory = temp_directory()};
	int status;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	status = in_child(run_job_without_main, &job);
	if (status == CHILD_SKIPPED)
		SKIP("no seccomp filter can be set here");
	assert_int_equal(status, 1);
	check_said(job.directory, "killed its main thread");
}

TEST(sigterm_ends_a_job_whose_main_thread_was_killed)
{
	struct killing job = {.ioengine = NVS_IOENGINE_LIBAIO, .directory = temp_directory()};
	pid_t pid;
	int status;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	SKIP("the sanitizers can't go on after a thread was killed");
#endif
	fflush(NULL);
	pid = fork();
	if (!pid)
		_exit(run_job_without_main(&job));
	while (state_of(pid) != 'Z' && (!child_of(pid) || state_of(child_of(pid)) != 'Z'))
		usleep(1000);
	assert_int_equal(kill(pid, SIGTERM), 0);
	status = status_of(pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_SKIPPED)
		SKIP("no seccomp filter can be set here");
	assert_true(WIFEXITED(status));
	assert_in_range(WEXITSTATUS(status), 1, 128 + SIGTERM);
}
