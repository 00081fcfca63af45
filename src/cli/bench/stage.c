/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parent waits for jobs to become ready or end, for signals, and for the next time to draw or
 * print. Each job has a socket to it, which carries "ready" and "begin" and closes when the job
 * ends for any reason. SIGINT and SIGTERM are unblocked only while waiting, so none is lost between
 * the check and the wait.
 *
 * None of a stage begins before all of it are ready; if one fails before, the others are stopped
 * and later stages do not run. A job that fails later stops no other. The parent forwards no
 * signal: a terminal signals all processes itself, and a second signal ends a process at once.
 */
#include "cli/bench/stage.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench/eta.h"
#include "cli/bench/run.h"
#include "cli/commands.h"
#include "cli/stop.h"

#define DRAW_NS	  100000000u
#define ANSWER_NS 1000000000u /* timeout of a status */
#define PAUSE_NS  2000000

struct shared {
	atomic_int stop_request; /* read by the jobs' stop_signal() */
	atomic_bool bar_on_line;
	struct job_live jobs[];
};

/* A job's process, in the parent. */
struct process {
	pid_t pid;
	int channel; /* -1: not started, or ended */
	bool ready;
};

struct stages {
	struct bench_plan *plan;
	struct shared *shared;
	size_t nbytes;
	struct process *processes; /* by job index */
	stages_status_fn *status;
	void *arg;
	sigset_t waiting; /* signal mask while waiting */
	bool draws;
	uint64_t status_ns;   /* when the next status is due; 0: never */
	bool begun;	      /* this stage has begun to measure */
	bool failed_to_begin; /* a job failed before its stage began */
};

static struct job_live *live_of(const struct stages *stages, unsigned job)
{
	return &stages->shared->jobs[job];
}

static struct bench_result *result_of(const struct stages *stages, unsigned job)
{
	return &live_of(stages, job)->result;
}

void say_of_job(const struct bench_plan *plan, unsigned index, const char *text)
{
	if (plan->n > 1)
		say("job %s (%u): %s", plan->jobs[index].name, index + 1, text);
	else
		say("%s", text);
}

static void set_error(struct bench_result *result, int code, const char *text)
{
	result->error = (struct nvs_error){.size = sizeof(result->error), .code = code};
	snprintf(result->error.text, sizeof(result->error.text), "%s", text);
}

/* ---- In the process of a job */

/* Of several jobs with the trace "t.json", the second writes "t.2.json". */
static void number_trace(struct bench_job *job, char *path, size_t nbytes)
{
	const char *given = job->options.trace, *slash, *dot;

	if (!given)
		return;
	slash = strrchr(given, '/');
	dot = strrchr(slash ? slash : given, '.');
	if (!dot)
		dot = given + strlen(given);
	snprintf(path, nbytes, "%.*s.%u%s", (int)(dot - given), given, job->index + 1, dot);
	job->options.trace = path;
}

static void watched_run(const struct stages *stages, unsigned index, int channel)
{
	static char trace[PATH_MAX];
	static struct bench_job job;
	struct job_live *live = live_of(stages, index);
	struct bench_result *result = &live->result;
	struct job_watch *watch;

	result->error.size = sizeof(result->error);
	job = stages->plan->jobs[index];
	if (stages->plan->n > 1)
		number_trace(&job, trace, sizeof(trace));
	watch = job_watch_open(&job, live, channel);
	if (!watch) {
		set_error(result, -ENOMEM, nvs_strerror(-ENOMEM));
		return;
	}
	bench_run(&job, watch, result);
	job_watch_close(watch);
}

static _Noreturn void run_job(const struct stages *stages, unsigned index, int channel, int parent)
{
	struct job_live *live = live_of(stages, index);

	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0)
			close(stages->processes[i].channel);
	live->result.pid = getpid();
	atomic_store(&live->phase, JOB_PREPARING);
	progress_store_in(&live->progress);
	if (!stop_follow(&stages->shared->stop_request, parent))
		_exit(STATUS_FAILED);
	sigprocmask(SIG_SETMASK, &stages->waiting, NULL);
	watched_run(stages, index, channel);
	atomic_store(&live->phase, JOB_ENDED);
	exit(0);
}

/* ---- Processes, in the parent */

static int start_job(struct stages *stages, unsigned index)
{
	struct process *process = &stages->processes[index];
	int ends[2], parent = getpid();

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return -errno;
	fflush(NULL);
	process->pid = fork();
	if (!process->pid) {
		close(ends[0]);
		run_job(stages, index, ends[1], parent);
	}
	close(ends[1]);
	if (process->pid < 0) {
		int rc = -errno;

		close(ends[0]);
		return rc;
	}
	process->channel = ends[0];
	return 0;
}

static void request_stop(struct stages *stages, int what)
{
	int none = 0;

	atomic_compare_exchange_strong(&stages->shared->stop_request, &none, what);
}

/* A process that was killed could not record the reason itself. */
static void note_death(struct stages *stages, unsigned index, int status)
{
	struct bench_result *result = result_of(stages, index);
	const char *left = "the next run on the same paths and rank removes its files";
	char text[256];

	if (WIFSIGNALED(status))
		snprintf(text, sizeof(text), "its process was ended by signal %d (%s); %s",
			 WTERMSIG(status), strsignal(WTERMSIG(status)), left);
	else
		snprintf(text, sizeof(text), "its process ended with status %d; %s",
			 WEXITSTATUS(status), left);
	result->measured = result->opened = false;
	set_error(result, -EOWNERDEAD, text);
	say_of_job(stages->plan, index, text);
	atomic_store(&live_of(stages, index)->phase, JOB_ENDED);
}

/* Whether the job ended early on request. */
static bool stopped_on_request(const struct stages *stages, int code)
{
	return atomic_load(&stages->shared->stop_request) && (code == -EINTR || code == -ECANCELED);
}

static void note_end(struct stages *stages, unsigned index)
{
	struct process *process = &stages->processes[index];
	const struct bench_result *result = result_of(stages, index);
	int status = 0;

	close(process->channel);
	process->channel = -1;
	while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status) ||
	    atomic_load(&live_of(stages, index)->phase) != JOB_ENDED)
		note_death(stages, index, status);
	else if (result->error.code && !stopped_on_request(stages, result->error.code))
		say_of_job(stages->plan, index, result->error.text);
	if (result->error.code && !stages->begun)
		stages->failed_to_begin = true;
}

/* ---- A stage */

/* Lets the stage begin once all jobs that have not ended are ready. */
static void let_begin(struct stages *stages)
{
	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0 && !stages->processes[i].ready)
			return;
	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0)
			send(stages->processes[i].channel, "b", 1, MSG_NOSIGNAL);
	stages->begun = true;
}

static void hear(struct stages *stages, unsigned index)
{
	struct process *process = &stages->processes[index];
	char c;

	if (recv(process->channel, &c, 1, 0) == 1)
		process->ready = true;
	else
		note_end(stages, index);
}

/* UINT64_MAX: nothing is due before a job or a signal. */
static uint64_t next_due(const struct stages *stages)
{
	uint64_t due = stages->draws ? clock_ns() + DRAW_NS : UINT64_MAX;

	return stages->status_ns && stages->status_ns < due ? stages->status_ns : due;
}

/*
 * Waits for processes, a signal or the next due time. Returns the number of processes before the
 * wait.
 */
static unsigned wait_for_jobs(struct stages *stages)
{
	struct pollfd polled[JOBS_MAX];
	unsigned jobs[JOBS_MAX], n = 0;
	uint64_t due = next_due(stages), now = clock_ns();
	uint64_t left = due > now ? due - now : 0;
	struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000u),
				   .tv_nsec = (long)(left % 1000000000u)};

	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0) {
			polled[n] = (struct pollfd){.fd = stages->processes[i].channel,
						    .events = POLLIN};
			jobs[n++] = i;
		}
	if (n && ppoll(polled, n, due < UINT64_MAX ? &timeout : NULL, &stages->waiting) < 0)
		return n;
	for (unsigned i = 0; i < n; i++)
		if (polled[i].revents)
			hear(stages, jobs[i]);
	return n;
}

/* ---- While it runs */

static void draw(const struct stages *stages)
{
	struct job_live *running[JOBS_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0)
			running[n++] = live_of(stages, i);
	eta_draw(running, n);
}

static void ask_for_status(const struct stages *stages)
{
	for (unsigned i = 0; i < stages->plan->n; i++) {
		struct job_live *live = live_of(stages, i);

		if (atomic_load(&live->phase) == JOB_MEASURING)
			atomic_fetch_add(&live->status_asked, 1);
	}
}

/* NULL: the job has not answered yet, and may be writing. */
static const struct bench_result *status_of(const struct stages *stages, unsigned index)
{
	static const struct bench_result nothing_yet;
	struct job_live *live = live_of(stages, index);
	bool answered = atomic_load(&live->status_answered) == atomic_load(&live->status_asked);

	switch (atomic_load(&live->phase)) {
	case JOB_MEASURING:
		return !answered ? NULL : live->status.measured ? &live->status : &nothing_yet;
	case JOB_MEASURED:
		return &live->measured;
	case JOB_ENDED:
		return &live->result;
	default:
		return &nothing_yet;
	}
}

static void print_status(struct stages *stages)
{
	static const struct timespec pause = {.tv_nsec = PAUSE_NS};
	const struct bench_result *results[JOBS_MAX];
	uint64_t until = clock_ns() + ANSWER_NS;

	ask_for_status(stages);
	for (unsigned i = 0; i < stages->plan->n; i++) {
		while (!(results[i] = status_of(stages, i)) && clock_ns() < until)
			nanosleep(&pause, NULL);
		/* Totals without this job would go backwards: skip this status. */
		if (!results[i])
			return;
	}
	fputs(progress_erase(), stderr);
	stages->status(stages->arg, results);
}

static void show(struct stages *stages)
{
	uint64_t interval_ns = stages->plan->run.status_interval_ms * 1000000u;

	if (stages->status_ns && clock_ns() >= stages->status_ns) {
		print_status(stages);
		stages->status_ns = clock_ns() + interval_ns;
	}
	if (stages->draws)
		draw(stages);
}

static void run_stage(struct stages *stages, unsigned stage)
{
	stages->begun = false;
	for (unsigned i = 0; i < stages->plan->n && !stages->failed_to_begin; i++) {
		char text[128];
		int rc;

		if (stages->plan->jobs[i].stage != stage)
			continue;
		rc = start_job(stages, i);
		if (!rc)
			continue;
		snprintf(text, sizeof(text), "cannot start its process: %s", nvs_strerror(rc));
		set_error(result_of(stages, i), rc, text);
		say_of_job(stages->plan, i, text);
		stages->failed_to_begin = true;
	}
	do {
		if (stop_signal())
			request_stop(stages, stop_signal());
		else if (stages->failed_to_begin)
			request_stop(stages, STOP_OTHER_FAILED);
		if (!stages->begun)
			let_begin(stages);
		show(stages);
	} while (wait_for_jobs(stages));
	fputs(progress_erase(), stderr);
}

/* ---- All stages */

static int exit_status(const struct stages *stages)
{
	bool failed = false;

	if (stop_signal()) {
		say("stopped by a signal");
		return 128 + stop_signal();
	}
	for (unsigned i = 0; i < stages->plan->n; i++)
		failed |= result_of(stages, i)->error.code != 0;
	return failed ? STATUS_FAILED : 0;
}

static int make_room(struct stages *stages)
{
	unsigned n = stages->plan->n;

	stages->nbytes = sizeof(struct shared) + n * sizeof(struct job_live);
	stages->shared = mmap(NULL, stages->nbytes, PROT_READ | PROT_WRITE,
			      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stages->shared == MAP_FAILED)
		stages->shared = NULL;
	stages->processes = calloc(n, sizeof(*stages->processes));
	for (unsigned i = 0; i < n && stages->processes; i++)
		stages->processes[i].channel = -1;
	return stages->shared && stages->processes ? 0 : -ENOMEM;
}

static void run_stages(struct stages *stages)
{
	const struct bench_plan *plan = stages->plan;
	uint64_t interval_ns = plan->run.status_interval_ms * 1000000u;
	unsigned last = plan->jobs[plan->n - 1].stage;
	sigset_t ending;

	stop_catch_signals();
	stop_signals(&ending);
	sigprocmask(SIG_BLOCK, &ending, &stages->waiting);
	progress_share(&stages->shared->bar_on_line);
	stages->draws = plan->run.eta == ETA_ALWAYS ||
			(plan->run.eta == ETA_AUTO && isatty(STDERR_FILENO) == 1);
	stages->status_ns = interval_ns ? clock_ns() + interval_ns : 0;
	for (unsigned stage = 0; stage <= last; stage++)
		if (!stop_signal() && !stages->failed_to_begin)
			run_stage(stages, stage);
	progress_share(NULL);
	sigprocmask(SIG_SETMASK, &stages->waiting, NULL);
	for (unsigned i = 0; i < stages->plan->n; i++) {
		struct bench_result *result = result_of(stages, i);

		if (atomic_load(&live_of(stages, i)->phase) != JOB_WAITING || result->error.code)
			continue;
		result->signal = stop_signal();
		if (result->signal)
			set_error(result, -EINTR, "not run: stopped by a signal");
		else
			set_error(result, -ECANCELED, "not run: another job could not begin");
	}
}

int stages_run(struct stages **opened, struct bench_plan *plan, const struct bench_result **results,
	       stages_status_fn *status, void *arg)
{
	struct stages *stages = calloc(1, sizeof(*stages));

	assert(plan->n && plan->n <= JOBS_MAX);
	*opened = stages;
	for (unsigned i = 0; i < plan->n; i++)
		results[i] = NULL;
	if (stages)
		*stages = (struct stages){.plan = plan, .status = status, .arg = arg};
	if (!stages || make_room(stages)) {
		say("out of memory for the results of %u jobs", plan->n);
		return STATUS_FAILED;
	}
	for (unsigned i = 0; i < plan->n; i++)
		results[i] = result_of(stages, i);
	run_stages(stages);
	return exit_status(stages);
}

void stages_free(struct stages *stages)
{
	if (!stages)
		return;
	if (stages->shared)
		munmap(stages->shared, stages->nbytes);
	free(stages->processes);
	free(stages);
}
