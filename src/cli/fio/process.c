/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio as a child: reads the job file from standard input and writes JSON to standard output. It
 * ends with this process, and when this process is asked to end.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/fio/fio.h"
#include "cli/stop.h"

/* Exit statuses as the shell uses them. */
#define NOT_FOUND 127
#define NOT_RUN	  126
#define LOOK_MS	  100

enum { IN, OUT, ERR, STREAMS };

static void close_all(const int fds[STREAMS])
{
	for (int i = 0; i < STREAMS; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* Streams are in memory, so that fio never blocks on a full pipe. */
static int open_streams(int fds[STREAMS], const char *jobs)
{
	size_t nbytes = strlen(jobs);
	int rc = 0;

	for (int i = 0; i < STREAMS; i++) {
		fds[i] = memfd_create("fio", MFD_CLOEXEC);
		if (fds[i] < 0)
			rc = -errno;
	}
	if (!rc && write(fds[IN], jobs, nbytes) != (ssize_t)nbytes)
		rc = -EIO;
	if (!rc)
		lseek(fds[IN], 0, SEEK_SET);
	return rc;
}

static _Noreturn void become_fio(const int fds[STREAMS], pid_t parent)
{
	char *const argv[] = {(char[]){"fio"}, (char[]){"--output-format=json"}, (char[]){"-"},
			      NULL};
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < STREAMS; i++)
		if (dup2(fds[i], i) < 0)
			_exit(NOT_RUN);
	if (getppid() == parent)
		execvp(argv[0], argv);
	_exit(errno == ENOENT ? NOT_FOUND : NOT_RUN);
}

/* Returns the status of waitpid. Passes a signal to end on, once. */
static int wait_for(pid_t pid)
{
	struct pollfd ended = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
	bool forwarded = false;
	int status = 0;

	while (ended.fd >= 0 && poll(&ended, 1, LOOK_MS) <= 0)
		if (stop_signal() && !forwarded) {
			kill(pid, SIGTERM);
			forwarded = true;
		}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (ended.fd >= 0)
		close(ended.fd);
	return status;
}

/* Error messages are one line. */
static const char *on_one_line(char *text)
{
	for (char *end = strchr(text, '\n'); end; end = strchr(end, '\n'))
		*end = ' ';
	return text;
}

/* NULL without memory. */
static char *contents(int fd)
{
	struct stat st;
	char *text = fstat(fd, &st) ? NULL : malloc((size_t)st.st_size + 1);

	if (!text)
		return NULL;

	ssize_t n = pread(fd, text, (size_t)st.st_size, 0);

	text[n < 0 ? 0 : n] = '\0';
	return text;
}

static int failed(const int fds[STREAMS], int status, struct nvs_error *error)
{
	char *said = contents(fds[ERR]);
	const char *text = said && *said ? on_one_line(said) : "it printed no reason";

	if (stop_signal())
		snprintf(error->text, sizeof(error->text), "stopped by a signal");
	else if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND)
		snprintf(error->text, sizeof(error->text),
			 "--compare needs fio, which is not installed: apt-get install fio");
	else if (WIFEXITED(status))
		snprintf(error->text, sizeof(error->text), "fio exited with %d: %.800s",
			 WEXITSTATUS(status), text);
	else
		snprintf(error->text, sizeof(error->text), "fio was killed by signal %d: %.800s",
			 WTERMSIG(status), text);
	free(said);
	if (stop_signal())
		return -EINTR;
	return WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND ? -ENOENT : -EIO;
}

int fio_run(const char *jobs, char **json, struct nvs_error *error)
{
	int fds[STREAMS], status, rc = open_streams(fds, jobs);
	pid_t parent = getpid(), pid = -1;

	if (!rc) {
		fflush(NULL);
		pid = fork();
		rc = pid < 0 ? -errno : 0;
	}
	if (!pid)
		become_fio(fds, parent);
	if (rc) {
		snprintf(error->text, sizeof(error->text), "can't start fio: %s", nvs_strerror(rc));
		close_all(fds);
		return rc;
	}
	status = wait_for(pid);
	if (stop_signal() || !WIFEXITED(status) || WEXITSTATUS(status))
		rc = failed(fds, status, error);
	else if (!(*json = contents(fds[OUT])))
		rc = -ENOMEM;
	close_all(fds);
	return rc;
}

int fio_read(char *json, struct job_figures *figures, unsigned n, struct nvs_error *error)
{
	static const char name[] = "fio's output";
	struct results results;
	int rc = results_parse(&results, json, name, error);
	const struct json_value *job = rc ? NULL : results.jobs->first;

	if (!rc && results.jobs->count != n) {
		snprintf(error->text, sizeof(error->text), "%s has %u jobs instead of %u", name,
			 results.jobs->count, n);
		rc = -EINVAL;
	}
	for (unsigned i = 0; !rc && i < n; i++, job = job->next)
		rc = results_figures(job, name, &figures[i], error);
	results_free(&results);
	return rc;
}
