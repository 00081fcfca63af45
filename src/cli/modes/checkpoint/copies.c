/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is written ends on the drive: a new file is made durable, and so is what went through the
 * page cache. The page cache has nothing of either file when a copy begins.
 */
#include "cli/modes/checkpoint/copies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file_limit.h"
#include "base/memory/huge_map.h"
#include "cli/modes/checkpoint/loop.h"

#define PIECE (1u << 20) /* of cp and write */

static int failed(struct nvs_error *error, const char *what, const char *path)
{
	int rc = -errno;

	return error_set(error, rc, "can't %s %s: %s", what, path, nvs_strerror(rc));
}

static int open_from(const struct copies *copies, int flags, struct nvs_error *error)
{
	int fd = open(copies->from, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | flags);

	if (fd >= 0)
		return fd;
	return failed(error, "open", copies->from);
}

static int open_to(const struct copies *copies, int flags, struct nvs_error *error)
{
	int fd = open(copies->to,
		      O_WRONLY | O_CLOEXEC | O_NOFOLLOW | flags |
			      (copies->over ? 0 : O_CREAT | O_EXCL),
		      0600);

	if (fd >= 0)
		return fd;
	return failed(error, "open", copies->to);
}

static int write_all(int fd, const char *data, size_t nbytes)
{
	while (nbytes) {
		ssize_t n = write(fd, data, nbytes);

		if (n < 0 && errno != EINTR)
			return -errno;
		data += n > 0 ? n : 0;
		nbytes -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

/* ---- cp and write ---- */

/* The next bytes of the checkpoint, or, without one, what is in memory. */
static int64_t next_piece(const struct copies *copies, int from, uint64_t left)
{
	size_t nbytes = left < PIECE ? (size_t)left : PIECE;
	ssize_t n;

	if (from < 0)
		return (int64_t)nbytes;
	do
		n = read(from, copies->memory, nbytes);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n ? n : -ENODATA;
}

static int write_pieces(const struct copies *copies, int from, int to, struct nvs_error *error)
{
	uint64_t left = copies->nbytes;
	int64_t n;
	int rc = 0;

	while (left && !rc) {
		n = next_piece(copies, from, left);
		if (n < 0)
			return error_set(error, (int)n, "can't read %s: %s", copies->from,
					 nvs_strerror((int)n));
		left -= (uint64_t)n;
		rc = write_all(to, copies->memory, (size_t)n);
	}
	if (!rc && fsync(to))
		rc = -errno;
	return rc ? error_set(error, rc, "can't write %s: %s", copies->to, nvs_strerror(rc)) : 0;
}

/* With `reads` the bytes of the checkpoint, as cp does; otherwise from memory. */
static int copy_buffered(const struct copies *copies, bool reads, struct nvs_error *error)
{
	int from = reads ? open_from(copies, 0, error) : -1, to, rc;

	if (reads && from < 0)
		return from;
	to = open_to(copies, 0, error);
	rc = to < 0 ? to : write_pieces(copies, from, to, error);
	if (to >= 0)
		close(to);
	if (reads)
		close(from);
	return rc;
}

/* ---- The loop ---- */

static uint64_t loop_blocks(const struct copies *copies)
{
	return copies->nbytes / copies->block;
}

static int run_loop(const struct copies *copies, int from, int to, struct nvs_error *error)
{
	uint64_t blocks = loop_blocks(copies);
	uint64_t nbytes = blocks * copies->block;
	int rc;

	if (!copies->over && file_reserve(to, 0, nbytes) && errno != EOPNOTSUPP)
		return failed(error, "reserve space for", copies->to);
	rc = copy_loop_run(copies->loop, from, to, blocks);
	if (rc)
		return error_set(error, rc, "the io_uring loop from %s to %s: %s", copies->from,
				 copies->to, nvs_strerror(rc));
	return !copies->over && fsync(to) ? failed(error, "sync", copies->to) : 0;
}

static int copy_with_loop(const struct copies *copies, struct nvs_error *error)
{
	int from = open_from(copies, O_DIRECT, error), to, rc;

	if (from < 0)
		return from;
	to = open_to(copies, O_DIRECT, error);
	rc = to < 0 ? to : run_loop(copies, from, to, error);
	if (to >= 0)
		close(to);
	close(from);
	return rc;
}

/* ---- All ways ---- */

static void forget(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0)
		return;
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	close(fd);
}

static int remove_file(const struct copies *copies, struct nvs_error *error)
{
	return unlink(copies->to) && errno != ENOENT ? failed(error, "remove", copies->to) : 0;
}

int copies_run(struct copies *copies, enum checkpoint_way way, uint64_t *moved, uint64_t *ns,
	       struct nvs_error *error)
{
	uint64_t from;
	int rc = copies->over ? 0 : remove_file(copies, error);

	*moved = *ns = 0;
	if (rc || (way == WAY_LOOP && !copies->loop))
		return rc;
	forget(copies->from);
	if (copies->over)
		forget(copies->to);
	from = clock_ns();
	rc = way == WAY_LOOP ? copy_with_loop(copies, error)
			     : copy_buffered(copies, way == WAY_CP, error);
	*ns = clock_ns() - from;
	*moved = way == WAY_LOOP ? loop_blocks(copies) * copies->block : copies->nbytes;
	return rc;
}

/* The file that a restore's copies write over. */
static int make_file(struct copies *copies, struct nvs_error *error)
{
	int rc;

	copies->over = false;
	rc = copy_buffered(copies, false, error);
	copies->over = true;
	return rc;
}

/* Direct I/O may be refused, and io_uring blocked: then there is no loop. */
static int open_loop(struct copies *copies, struct nvs_error *error)
{
	struct nvs_error refused = {.size = sizeof(refused)};
	int fd = open_from(copies, O_DIRECT, &refused), rc = fd;

	if (fd >= 0) {
		close(fd);
		if (copies->block > copies->nbytes)
			copies->block = copies->nbytes / page_bytes() * page_bytes();
		rc = copies->block
			     ? copy_loop_open(&copies->loop, copies->block, copies->depth, error)
			     : -EINVAL;
	}
	if (rc == -ENOMEM)
		return rc;
	if (rc < 0)
		snprintf(copies->why_no_loop, copies->reason_bytes, "%s",
			 !copies->block	 ? "the state is less than a page"
			 : *refused.text ? refused.text
					 : nvs_strerror(rc));
	return 0;
}

int copies_open(struct copies *copies, struct nvs_error *error)
{
	int rc = remove_file(copies, error);

	copies->memory = malloc(PIECE);
	if (!copies->memory)
		return -ENOMEM;
	memset(copies->memory, 0xa5, PIECE);
	if (!rc && copies->over)
		rc = make_file(copies, error);
	return rc ? rc : open_loop(copies, error);
}

void copies_close(struct copies *copies)
{
	copy_loop_close(copies->loop);
	free(copies->memory);
	if (copies->to)
		unlink(copies->to);
	*copies = (struct copies){0};
}
