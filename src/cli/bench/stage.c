/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the jobs of a plan, each in its own process like a rank, so that processor time, memory and
 * page faults are its own. Jobs of a stage open and fill first and begin to measure together;
 * stages run one after another.
 *
 * The parent waits for jobs to become ready or end, for signals, and for the next time to draw or
 * print. Each job has a socket to it, which carries "ready" and "begin" and closes when the job
 * ends for any reason. SIGINT and SIGTERM are unblocked only while waiting, so none is lost between
 * the check and the wait.
 *
 * None of a stage begins before all of it are ready; if one fails before, the others are stopped
 * and later stages do not run. A job that fails later stops no other. The parent forwards no
 * signal: a terminal signals all processes itself, and a second signal ends a process at once.
 */
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/numbers.h"
#include "cli/bench/run.h"
#include "cli/modes/modes.h"
#include "cli/replay/replay.h"

#define TRACE_SPANS ((size_t)1 << 20)
#define DRAW_NS	    100000000u
#define ANSWER_NS   1000000000u /* timeout of a status */
#define PAUSE_NS    2000000

struct shared {
	atomic_int stop_request; /* read by the jobs' stop_signal() */
	atomic_bool bar_on_line;
	struct job_live jobs[];
};

struct process {
	pid_t pid;
	int channel; /* -1: not started, or ended */
	bool ready;
};

struct stages {
	struct bench_plan *plan;
	struct shared *shared;
	struct process processes[JOBS_MAX]; /* by job index */
	sigset_t waiting;		    /* signal mask while waiting */
	bool begun;			    /* this stage has begun to measure */
	bool failed_to_begin;		    /* a job failed before its stage began */
};

void say_of_job(const struct bench_plan *plan, unsigned index, const char *text)
{
	if (plan->n > 1)
		say("job %s (%u): %s", plan->jobs[index].name, index + 1, text);
	else
		say("%s", text);
}

/* ---- In the process of a job ---- */

static int run_mode(struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	switch (job->options.rw) {
	case RW_STEP:
		return bench_step(job, watch, result);
	case RW_REPLAY:
		return bench_replay(job, watch, result);
	case RW_PARAMS:
		return bench_params(job, watch, result);
	default:
		return (is_block_mode(job->options.rw) ? bench_blocks : bench_swap)(job, watch,
										    result);
	}
}

/* If the run fails too, its own error stays in the result, and that of the trace is printed. */
static int run_traced(struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	const char *path = job->options.trace;
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t dropped = 0;
	int rc = nvs_trace_open(&job->trace, TRACE_SPANS, &result->error), written;

	if (rc)
		return rc;
	/* Detect an unwritable file before the run. */
	rc = nvs_trace_write(job->trace, path, NULL, &result->error);
	if (!rc) {
		nvs_config_set_trace(job->config, job->trace);
		rc = run_mode(job, watch, result);
		nvs_config_set_trace(job->config, NULL);
		written = nvs_trace_write(job->trace, path, &dropped, &error);
		if (dropped)
			say("%s lacks %llu spans: a trace has room for %zu; trace a shorter run",
			    path, (unsigned long long)dropped, TRACE_SPANS);
		if (written && rc) {
			say("%s", *error.text ? error.text : nvs_strerror(written));
		} else if (written) {
			result->error = error;
			rc = written;
		}
	}
	nvs_trace_close(job->trace);
	return rc;
}

static _Noreturn void run_job(const struct stages *stages, unsigned index, int channel, int parent)
{
	static char path[PATH_MAX];
	struct bench_job *job = &stages->plan->jobs[index]; /* of this process alone */
	struct job_live *live = &stages->shared->jobs[index];
	struct nvs_error *error = &live->result.error;
	const char *trace = job->options.trace, *slash, *dot;
	uint64_t started = clock_ns();
	struct job_watch *watch;
	int rc, stopped;

	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0)
			close(stages->processes[i].channel);
	live->result.pid = getpid();
	error->size = sizeof(*error);
	atomic_store(&live->phase, JOB_PREPARING);
	progress_store_in(&live->progress);
	if (!stop_follow(&stages->shared->stop_request, parent))
		_exit(STATUS_FAILED);
	sigprocmask(SIG_SETMASK, &stages->waiting, NULL);
	if (trace && stages->plan->n > 1) {
		/* Of several jobs with the trace "t.json", the second writes "t.2.json". */
		slash = strrchr(trace, '/');
		dot = strrchr(slash ? slash : trace, '.');
		if (!dot)
			dot = trace + strlen(trace);
		snprintf(path, sizeof(path), "%.*s.%u%s", (int)(dot - trace), trace, index + 1,
			 dot);
		job->options.trace = path;
	}
	watch = job_watch_open(job, live, channel);
	rc = (trace ? run_traced : run_mode)(job, watch, &live->result);
	stopped = rc ? 0 : stop_signal();
	if (stopped == STOP_OTHER_FAILED) {
		rc = error_set(error, -ECANCELED, "ended early: another job could not begin");
	} else if (stopped) {
		live->result.signal = stopped;
		rc = error_set(error, -EINTR, "stopped by a signal");
	}
	if (rc && !*error->text)
		error_set(error, rc, "%s", nvs_strerror(rc));
	error->code = rc;
	live->result.elapsed_s = (double)(clock_ns() - started) / 1e9;
	atomic_store(&live->phase, JOB_ENDED);
	exit(0);
}

/* ---- Processes ---- */

static int start_job(struct stages *stages, unsigned index)
{
	struct process *process = &stages->processes[index];
	int ends[2], parent = getpid(), rc;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
		return -errno;
	fflush(NULL);
	process->pid = fork();
	rc = process->pid < 0 ? -errno : 0;
	if (!process->pid) {
		close(ends[0]);
		run_job(stages, index, ends[1], parent);
	}
	close(ends[1]);
	if (rc)
		close(ends[0]);
	else
		process->channel = ends[0];
	return rc;
}

static void note_end(struct stages *stages, unsigned index)
{
	struct process *process = &stages->processes[index];
	struct job_live *live = &stages->shared->jobs[index];
	struct nvs_error *error = &live->result.error;
	int status = 0, number;
	bool stopped;

	close(process->channel);
	process->channel = -1;
	while (waitpid(process->pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status || atomic_load(&live->phase) != JOB_ENDED) {
		/* A process that was killed could not record the reason itself. */
		const char *left = "the next run on the same paths and rank removes its files";

		live->result.measured = live->result.opened = false;
		atomic_store(&live->phase, JOB_ENDED);
		number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
		error->size = sizeof(*error);
		if (WIFSIGNALED(status))
			error_set(error, -EOWNERDEAD, "its process was ended by signal %d (%s); %s",
				  number, strsignal(number), left);
		else
			error_set(error, -EOWNERDEAD, "its process ended with status %d; %s",
				  number, left);
	}
	stopped = atomic_load(&stages->shared->stop_request) &&
		  (error->code == -EINTR || error->code == -ECANCELED);
	if (error->code && !stopped)
		say_of_job(stages->plan, index, error->text);
	stages->failed_to_begin |= error->code && !stages->begun;
}

/* Waits for processes or a signal. False: no process was left before the wait. */
static bool wait_for_jobs(struct stages *stages, uint64_t due)
{
	struct pollfd polled[JOBS_MAX];
	unsigned jobs[JOBS_MAX], n = 0;
	uint64_t now = clock_ns(), left = due > now ? due - now : 0;
	struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000u),
				   .tv_nsec = (long)(left % 1000000000u)};
	char byte;

	for (unsigned i = 0; i < stages->plan->n; i++)
		if (stages->processes[i].channel >= 0) {
			polled[n] = (struct pollfd){.fd = stages->processes[i].channel,
						    .events = POLLIN};
			jobs[n++] = i;
		}
	if (n && ppoll(polled, n, due < UINT64_MAX ? &timeout : NULL, &stages->waiting) < 0)
		return true;
	for (unsigned i = 0; i < n; i++) {
		if (!polled[i].revents)
			continue;
		if (recv(polled[i].fd, &byte, 1, 0) == 1)
			stages->processes[jobs[i]].ready = true;
		else
			note_end(stages, jobs[i]);
	}
	return n;
}

/* The phase of the job that has the longest way to go, and the rates of all. */
static void draw(const struct stages *stages)
{
	struct progress_now slowest = {.phase = NULL};
	double bytes_per_s[2] = {0}, ios_per_s = 0, other_per_s = 0;
	uint64_t clock = clock_ns();
	char label[32], rates[96];
	unsigned n = 0;

	for (unsigned i = 0; i < stages->plan->n; i++) {
		struct job_live *live = &stages->shared->jobs[i];
		uint64_t since = atomic_load(&live->measuring_since_ns);
		struct progress_now now = progress_read(&live->progress);

		if (stages->processes[i].channel < 0 || !now.phase)
			continue;
		n++;
		if (!slowest.phase || now.share < slowest.share)
			slowest = now;
		if (atomic_load(&live->phase) != JOB_MEASURING)
			other_per_s += now.bytes_per_s;
		else if (since && clock > since)
			for (int d = NVS_READ; d <= NVS_WRITE; d++) {
				bytes_per_s[d] += (double)atomic_load(&live->bytes[d]) * 1e9 /
						  (double)(clock - since);
				ios_per_s += (double)atomic_load(&live->ios[d]) * 1e9 /
					     (double)(clock - since);
			}
	}
	if (!n)
		return;
	snprintf(label, sizeof(label), n > 1 ? "%s (%u)" : "%s", slowest.phase, n);
	if (ios_per_s > 0)
		snprintf(rates, sizeof(rates), "%.2f GB/s read, %.2f GB/s written, %.0f IOPS",
			 bytes_per_s[NVS_READ] / 1e9, bytes_per_s[NVS_WRITE] / 1e9, ios_per_s);
	else
		snprintf(rates, sizeof(rates), "%.2f GB/s", other_per_s / 1e9);
	progress_draw(label, slowest.share, rates, slowest.seconds_left);
}

/* NULL: the job has not answered yet, and may be writing. */
static const struct bench_result *status_of(struct shared *shared, unsigned index)
{
	static const struct bench_result nothing_yet;
	struct job_live *live = &shared->jobs[index];
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

static void print_status(struct stages *stages, stages_status_fn *status, void *arg)
{
	static const struct timespec pause = {.tv_nsec = PAUSE_NS};
	const struct bench_result *results[JOBS_MAX];
	struct job_live *jobs = stages->shared->jobs;
	uint64_t until = clock_ns() + ANSWER_NS;

	assert(jobs);
	for (unsigned i = 0; i < stages->plan->n; i++)
		if (atomic_load(&jobs[i].phase) == JOB_MEASURING)
			atomic_fetch_add(&jobs[i].status_asked, 1);
	for (unsigned i = 0; i < stages->plan->n; i++) {
		while (!(results[i] = status_of(stages->shared, i)) && clock_ns() < until)
			nanosleep(&pause, NULL);
		/* Totals without this job would go backwards: skip this status. */
		if (!results[i])
			return;
	}
	fputs(progress_erase(), stderr);
	status(arg, results);
}

/* Starts the jobs of a stage, and lets them begin once all that have not ended are ready. */
static void run_stage(struct stages *stages, unsigned stage, bool draws, uint64_t *status_ns,
		      stages_status_fn *status, void *arg)
{
	const struct bench_plan *plan = stages->plan;
	struct process *processes = stages->processes;
	unsigned waiting;
	int none, request, rc;

	stages->begun = false;
	for (unsigned i = 0; i < plan->n && !stages->failed_to_begin; i++) {
		struct nvs_error *error = &stages->shared->jobs[i].result.error;

		rc = plan->jobs[i].stage == stage ? start_job(stages, i) : 0;
		if (!rc)
			continue;
		error->size = sizeof(*error);
		error_set(error, rc, "cannot start its process: %s", nvs_strerror(rc));
		say_of_job(plan, i, error->text);
		stages->failed_to_begin = true;
	}
	do {
		none = waiting = 0;
		request = stop_signal();
		if (!request && stages->failed_to_begin)
			request = STOP_OTHER_FAILED;
		atomic_compare_exchange_strong(&stages->shared->stop_request, &none, request);
		for (unsigned i = 0; i < plan->n; i++)
			waiting += processes[i].channel >= 0 && !processes[i].ready;
		for (unsigned i = 0; i < plan->n && !waiting && !stages->begun; i++)
			if (processes[i].channel >= 0)
				send(processes[i].channel, "b", 1, MSG_NOSIGNAL);
		stages->begun |= !waiting;
		if (clock_ns() >= *status_ns) {
			print_status(stages, status, arg);
			*status_ns = clock_ns() + plan->run.status_interval_ms * 1000000u;
		}
		if (draws)
			draw(stages);
	} while (wait_for_jobs(stages,
			       draws ? min_u64(*status_ns, clock_ns() + DRAW_NS) : *status_ns));
	fputs(progress_erase(), stderr);
}

int stages_run(struct bench_plan *plan, const struct bench_result **results,
	       stages_status_fn *status, void *arg)
{
	static struct stages stages;
	size_t nbytes = sizeof(struct shared) + plan->n * sizeof(struct job_live);
	void *shared = mmap(NULL, nbytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t interval_ns = plan->run.status_interval_ms * 1000000u;
	uint64_t status_ns = interval_ns ? clock_ns() + interval_ns : UINT64_MAX;
	bool failed = false, draws = plan->run.eta == ETA_ALWAYS ||
				     (plan->run.eta == ETA_AUTO && isatty(STDERR_FILENO) == 1);

	assert(plan->n && plan->n <= JOBS_MAX);
	if (shared == MAP_FAILED)
		return REFUSE(STATUS_FAILED, "out of memory for the results of %u jobs", plan->n);
	stages.plan = plan;
	stages.shared = shared;
	for (unsigned i = 0; i < plan->n; i++) {
		stages.processes[i].channel = -1;
		results[i] = &stages.shared->jobs[i].result;
	}
	stop_catch_signals(&stages.waiting);
	progress_share(&stages.shared->bar_on_line);
	for (unsigned stage = 0; stage <= plan->jobs[plan->n - 1].stage; stage++)
		if (!stop_signal() && !stages.failed_to_begin)
			run_stage(&stages, stage, draws, &status_ns, status, arg);
	progress_share(NULL);
	sigprocmask(SIG_SETMASK, &stages.waiting, NULL);
	for (unsigned i = 0; i < plan->n; i++) {
		struct job_live *live = &stages.shared->jobs[i];
		struct nvs_error *error = &live->result.error;

		if (atomic_load(&live->phase) == JOB_WAITING && !error->code) {
			error->size = sizeof(*error);
			live->result.signal = stop_signal();
			error_set(error, stop_signal() ? -EINTR : -ECANCELED, "not run: %s",
				  stop_signal() ? "stopped by a signal"
						: "another job could not begin");
		}
		failed |= error->code != 0;
	}
	if (stop_signal())
		return REFUSE(128 + stop_signal(), "stopped by a signal");
	return failed ? STATUS_FAILED : 0;
}
