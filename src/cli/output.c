/* SPDX-License-Identifier: Apache-2.0 */
/* Results and progress, whose line is never wider than the terminal: one that wraps can't be
 * erased. */
#include "cli/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "base/clock.h"
#include "base/numbers.h"

#define DIRECTORY    (O_PATH | O_DIRECTORY | O_CLOEXEC)
#define OUTPUT_BYTES (64 << 10)
#define DESCRIPTOR   "/proc/self/fd/"

void say(const char *format, ...)
{
	char text[2048], visible[2 * sizeof(text)];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "%snvswap: %s\n", progress_erase(),
		visible_text(text, strlen(text), visible, sizeof(visible)));
}

void say_log(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;
	if (level <= NVS_LOG_WARNING)
		say("%s: %s", level == NVS_LOG_ERROR ? "error" : "warning", text);
}

/* Whether nobody but root and the caller can have made or replaced this link in the directory. */
static bool is_trusted(int directory, const char *name)
{
	struct stat link, in;

	return !fstatat(directory, name, &link, AT_SYMLINK_NOFOLLOW) && !fstat(directory, &in) &&
	       (link.st_uid == 0 || link.st_uid == geteuid()) &&
	       (in.st_uid == 0 || in.st_uid == geteuid()) &&
	       (!(in.st_mode & (S_IWGRP | S_IWOTH)) || in.st_mode & S_ISVTX);
}

/* Opens a file for writing without truncating it, and follows no link to it that another user could
 * have planted: -ELOOP. The directories of the path are opened one by one, because O_NOFOLLOW is
 * about the last part alone; each relative to the one before, so that renaming changes nothing. */
static int open_result(const char *path)
{
	int directory = open(*path == '/' ? "/" : ".", DIRECTORY), rc = -errno, next;
	char name[NAME_MAX + 1], target[PATH_MAX];
	int flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
	struct statfs fs;

	for (size_t length; directory >= 0; path += length) {
		path += strspn(path, "/");
		length = strcspn(path, "/");
		if (length > NAME_MAX) {
			close(directory);
			return -ENAMETOOLONG;
		}
		memcpy(name, path, length);
		name[length] = '\0';
		if (!path[length])
			break;
		next = openat(directory, name, DIRECTORY | O_NOFOLLOW);
		rc = -errno;
		/* O_DIRECTORY makes a link ENOTDIR. */
		if (next < 0 && readlinkat(directory, name, target, sizeof(target)) >= 0) {
			rc = -ELOOP;
			if (is_trusted(directory, name)) {
				next = openat(directory, name, DIRECTORY);
				rc = -errno;
			}
		}
		close(directory);
		directory = next;
	}
	if (directory < 0)
		return rc;
	/* What lies in /proc is the kernel's own link, and /dev/stdout is root's link to one. */
	if ((!fstatfs(directory, &fs) && fs.f_type == PROC_SUPER_MAGIC) ||
	    (readlinkat(directory, name, target, sizeof(target)) > (int)strlen(DESCRIPTOR) &&
	     !memcmp(target, DESCRIPTOR, strlen(DESCRIPTOR)) && is_trusted(directory, name)))
		flags &= ~O_NOFOLLOW;
	next = openat(directory, name, flags, 0666);
	rc = next < 0 ? -errno : next;
	close(directory);
	return rc;
}

int output_open(struct output *output, const char *path)
{
	/* Longer than most outputs: they are written when closing, which can report why it fails.
	 */
	static char buffer[OUTPUT_BYTES];
	int fd = path ? open_result(path) : -1;

	*output = (struct output){.path = path, .file = path ? NULL : stdout};
	if (fd >= 0)
		output->file = fdopen(fd, "w");
	if (!output->file)
		return REFUSE(
			STATUS_FAILED, "can't write the output to %s: %s", path,
			fd == -ELOOP
				? "it is, or lies behind, a symbolic link, which is not followed; "
				  "name the file itself"
				: nvs_strerror(fd < 0 ? fd : -errno));
	/* NULL for want of memory: a shorter one. */
	output->buffer = path ? malloc(OUTPUT_BYTES) : NULL;
	setvbuf(output->file, path ? output->buffer : buffer, _IOFBF, OUTPUT_BYTES);
	return 0;
}

int output_begin(struct output *output)
{
	/* EINVAL: a terminal, a pipe or a device. */
	if (!output->path || !ftruncate(fileno(output->file), 0) || errno == EINVAL)
		return 0;
	return REFUSE(STATUS_FAILED, "can't empty the output %s: %s", output->path,
		      strerror(errno));
}

bool is_same_file(const char *a, const char *b)
{
	struct stat of_a, of_b;

	if (!a || !b)
		return false;
	if (stat(a, &of_a) || stat(b, &of_b))
		return !strcmp(a, b);
	/* Several results may be written to one device. */
	return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

int output_close(struct output *output)
{
	int failed = ferror(output->file);

	errno = 0;
	if (output->path)
		failed |= fclose(output->file);
	else
		failed |= fflush(output->file);
	output->file = NULL;
	free(output->buffer);
	if (!failed)
		return 0;
	return REFUSE(STATUS_FAILED, "the output to %s is incomplete: %s",
		      output->path ? output->path : "standard output",
		      errno ? strerror(errno) : "a write failed");
}

void say_page(const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				    "0123456789_./:,+%@=-";
	char stem[4 * PATH_MAX + 3] = "", *end = stem; /* the path without .json, for a shell */
	const char *quote, *suffix;
	struct stat st;

	if (!path || stat(path, &st) || !S_ISREG(st.st_mode))
		return;
	quote = path[strspn(path, plain)] ? "'" : "";
	suffix = path + strlen(path) - (text_ends_with(path, ".json") ? 5 : 0);
	if (*path == '-')
		end = stpcpy(end, "./");
	for (const char *c = path; c < suffix; c++)
		end = *c == '\'' ? stpcpy(end, "'\\''") : stpncpy(end, c, 1);
	*end = '\0';
	say("for a page of these results: python3 -m nvswap.report %s%s%s%s -o %s%s.html%s", quote,
	    stem, suffix, quote, quote, stem, quote);
}

/* ---- Progress ---- */

#define BAR_MIN		5
#define BAR_MAX		30
#define INTERVAL_NS	100000000u
#define COLUMNS_UNKNOWN 80
#define LINE_MAX_BYTES	256

static struct progress progress_here, *stored_in = &progress_here;
static bool draws_here;
static uint64_t drawn_ns;
static atomic_bool on_line_here;
static atomic_bool *on_line = &on_line_here;

const char *progress_erase(void)
{
	return atomic_exchange(on_line, false) ? "\r\033[K" : "";
}

void progress_share(atomic_bool *shared)
{
	on_line = shared ? shared : &on_line_here;
}

void progress_store_in(struct progress *progress)
{
	stored_in = progress;
}

void progress_begin(const char *phase, uint64_t total)
{
	atomic_store(&stored_in->phase, NULL);
	atomic_store(&stored_in->since_ns, clock_ns());
	atomic_store(&stored_in->total, total);
	atomic_store(&stored_in->done, 0);
	atomic_store(&stored_in->bytes, 0);
	atomic_store(&stored_in->phase, phase);
	draws_here = stored_in == &progress_here && isatty(STDERR_FILENO) == 1;
	drawn_ns = 0;
}

struct progress_now progress_read(const struct progress *progress)
{
	uint64_t total = atomic_load(&progress->total), done = atomic_load(&progress->done);
	uint64_t since = atomic_load(&progress->since_ns), clock = clock_ns();
	double seconds = since && clock > since ? (double)(clock - since) / 1e9 : 0;
	struct progress_now now = {.phase = atomic_load(&progress->phase), .seconds_left = -1};

	now.share = total && done < total ? (double)done / (double)total : 1;
	if (now.share > 0.01)
		now.seconds_left = seconds / now.share * (1 - now.share);
	if (seconds > 0)
		now.bytes_per_s = (double)atomic_load(&progress->bytes) / seconds;
	return now;
}

void progress_draw(const char *phase, double share, const char *rates, double seconds_left)
{
	static const char filled[] = "##############################";
	static const char empty[] = "..............................";
	char left[32] = "", behind[LINE_MAX_BYTES], line[3 * LINE_MAX_BYTES],
	     bar[2 * BAR_MAX + 4] = "";
	size_t columns = COLUMNS_UNKNOWN, named = strlen(phase), shown = strlen(rates);
	struct winsize size;
	int width, done;

	/* Asked for at each draw, since the user may resize the terminal. The last column stays
	 * empty: some terminals wrap when it is written. */
	if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col)
		columns = size.ws_col;
	columns = min_u64(columns, LINE_MAX_BYTES) - 1;
	named = min_u64(named, columns);
	if (seconds_left >= 0)
		snprintf(left, sizeof(left), ", %.0f s left", seconds_left);
	/* Rates that don't fit are left out from the end. */
	while (snprintf(behind, sizeof(behind), " %3.0f %%%s%.*s%s", share * 100, shown ? "  " : "",
			(int)shown, rates, left) > (int)(columns - named) &&
	       shown)
		do
			shown--;
		while (shown && rates[shown] != ',');
	width = (int)columns - (int)(named + strlen(behind) + strlen(" []"));
	width = width < BAR_MAX ? width : BAR_MAX;
	done = (int)(share * width);
	if (width >= BAR_MIN)
		snprintf(bar, sizeof(bar), " [%.*s%.*s]", done, filled, width - done, empty);
	snprintf(line, sizeof(line), "%s%s%s", phase, bar, behind);
	fprintf(stderr, "\r%.*s\033[K", (int)columns, line);
	fflush(stderr);
	atomic_store(on_line, true);
}

void progress_update(uint64_t done, uint64_t bytes)
{
	struct progress_now now;
	char rates[32];

	atomic_store(&stored_in->bytes, bytes);
	atomic_store(&stored_in->done, done);
	if (!draws_here || clock_ns() - drawn_ns < INTERVAL_NS)
		return;
	drawn_ns = clock_ns();
	now = progress_read(stored_in);
	snprintf(rates, sizeof(rates), "%.2f GB/s", now.bytes_per_s / 1e9);
	progress_draw(now.phase, now.share, rates, now.seconds_left);
}

void progress_end(void)
{
	atomic_store(&stored_in->phase, NULL);
	draws_here = false;
	if (stored_in == &progress_here)
		fputs(progress_erase(), stderr);
}
