/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvs_file: a flat byte range over one or more files or block devices, each with one descriptor for
 * direct I/O and one for buffered I/O.
 */
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "aio/internal.h"
#include "aio/requests/requests.h"
#include "base/memory/huge_map.h"
#include "base/threads/cancel.h"

int file_member_probe(struct file_member *member, bool writable, bool buffered)
{
	int rc = dio_probe(member->fd, &member->dio);

	member->direct_fd = -1;
	if (rc || buffered || !member->dio.direct) {
		member->dio.direct = false;
		return rc;
	}
	rc = dio_open(member->fd, writable ? O_RDWR : O_RDONLY);
	member->dio.direct = rc >= 0;
	if (rc < 0)
		return rc;
	member->direct_fd = rc;
	return 0;
}

static int slot_take(struct nvs_aio *aio, int fd)
{
	if (fd < 0)
		return -1;
	for (int slot = 0; slot < ENGINE_FILES; slot++) {
		assert(aio->files[slot] != fd);
		if (aio->files[slot] < 0) {
			aio->files[slot] = fd;
			return slot;
		}
	}
	return -1;
}

static void slot_give(struct nvs_aio *aio, int slot)
{
	assert(slot < ENGINE_FILES && (slot < 0 || aio->files[slot] >= 0));
	if (slot >= 0)
		aio->files[slot] = -1;
}

static void set_alignment(struct nvs_file *file)
{
	file->direct = true;
	file->offset_align = file->mem_align = 1;
	for (unsigned i = 0; i < file->nmembers; i++) {
		const struct file_member *member = &file->members[i];

		file->direct &= member->direct_fd >= 0;
		file->offset_align = (uint32_t)max_u64(file->offset_align,
						       member->dio.offset_align);
		file->mem_align = (uint32_t)max_u64(file->mem_align, member->dio.mem_align);
	}
	if (!file->direct)
		file->offset_align = file->mem_align = 1;
	file->write_unit = file->offset_align;
	/* The page cache writes back whole pages: direct writes must not share a page with it. */
	if (file->direct && !file->padded && !file->units && file->write_unit < page_bytes())
		file->write_unit = (uint32_t)page_bytes();
	file_check(file);
}

int file_create(struct nvs_aio *aio, const struct file_member *members, unsigned n, uint64_t stripe,
		bool writable, bool padded, struct nvs_file **out, struct nvs_error *error)
{
	struct nvs_file *file = calloc(1, sizeof(*file) + n * sizeof(file->members[0]));

	assert(n && (!stripe || n <= NVS_PATHS_MAX));
	assert(!members[0].first && (n == 1 || stripe || !writable));
	if (!file)
		goto no_memory;
	*file = (struct nvs_file){.aio = aio,
				  .nmembers = n,
				  .stripe = stripe,
				  .writable = writable,
				  .padded = padded};
	for (unsigned i = 0; i < n; i++) {
		file->members[i] = members[i];
		file->members[i].path = strdup(members[i].path);
		if (!file->members[i].path)
			goto no_memory;
	}
	set_alignment(file);
	assert(n == 1 || !stripe || stripe % file->write_unit == 0);

	pthread_mutex_lock(&aio->lock);
	for (unsigned i = 0; i < n; i++) {
		file->members[i].slot = slot_take(aio, file->members[i].fd);
		file->members[i].direct_slot = slot_take(aio, file->members[i].direct_fd);
	}
	LIST_INSERT_HEAD(&aio->open_files, file, open);
	aio_sync(aio);
	pthread_mutex_unlock(&aio->lock);
	*out = file;
	return 0;

no_memory:
	for (unsigned i = 0; file && i < n; i++)
		free(file->members[i].path);
	free(file);
	return error_set(error, -ENOMEM, "out of memory while opening %s", members[0].path);
}

static int check_flags(const char *name, unsigned flags, unsigned allowed, struct nvs_error *error)
{
	if (flags & ~allowed ||
	    (!(flags & NVS_FILE_WRITE) && flags & (NVS_FILE_CREATE | NVS_FILE_TRUNCATE)))
		return error_set(error, -EINVAL,
				 "%s: flags %#x are invalid: NVS_FILE_CREATE and "
				 "NVS_FILE_TRUNCATE need NVS_FILE_WRITE, and unknown flags must be "
				 "0",
				 name, flags);
	return 0;
}

/* Only files and block devices have offsets. */
static int check_kind(int fd, const char *name, struct nvs_error *error)
{
	const char *made_up = NULL;
	struct statfs fs;
	struct stat st;

	/* The kernel makes these up when they are read: sizes and offsets mean nothing there. */
	if (!fstatfs(fd, &fs) && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC))
		made_up = fs.f_type == SYSFS_MAGIC ? "sysfs" : "proc";
	if (fstat(fd, &st))
		return error_set(error, -errno, "cannot look at %s: %s", name,
				 nvs_strerror(-errno));
	if (S_ISDIR(st.st_mode))
		return error_set(error, -EISDIR, "%s is a directory: name a file or a block device",
				 name);
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return error_set(error, -EINVAL,
				 "%s is neither a file nor a block device, so it has no offsets",
				 name);
	if (made_up)
		return error_set(error, -EINVAL,
				 "%s is on %s, where the kernel makes the contents up when they "
				 "are read: use read(2), or name a file or block device on a drive",
				 name, made_up);
	return 0;
}

/* Closes the descriptor on error. */
static int open_member(struct nvs_aio *aio, struct file_member *member, unsigned flags,
		       struct nvs_file **out, struct nvs_error *error)
{
	bool writable = flags & NVS_FILE_WRITE;
	int rc = file_member_probe(member, writable, flags & NVS_FILE_BUFFERED);

	if (rc)
		error_set(error, rc, "cannot determine the alignment of %s: %s", member->path,
			  nvs_strerror(rc));
	else
		rc = file_create(aio, member, 1, 0, writable, false, out, error);
	if (!rc && flags & NVS_FILE_UNITS) {
		assert(*out && !(*out)->in_flight && !(*out)->padded);
		(*out)->units = true;
		set_alignment(*out);
	}
	if (rc) {
		close(member->fd);
		if (member->direct_fd >= 0)
			close(member->direct_fd);
	}
	return rc;
}

int nvs_file_open(struct nvs_aio *aio, const char *path, unsigned flags, struct nvs_file **out,
		  struct nvs_error *error)
{
	HOLD_CANCEL;
	struct file_member member = {.path = (char *)(uintptr_t)path, .direct_fd = -1};
	int rc, oflags;

	if (out)
		*out = NULL;
	if (!aio || !path || !out)
		return error_set(error, -EINVAL, "the aio, path or place for the file is NULL");
	rc = check_flags(path, flags,
			 NVS_FILE_WRITE | NVS_FILE_CREATE | NVS_FILE_TRUNCATE | NVS_FILE_BUFFERED |
				 NVS_FILE_UNITS,
			 error);
	if (rc)
		return rc;
	/* O_NONBLOCK keeps a FIFO from blocking; files in use must not have it, or I/Os return
	 * EAGAIN. */
	oflags = (flags & NVS_FILE_WRITE ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	oflags |= flags & NVS_FILE_CREATE ? O_CREAT : 0;
	oflags |= flags & NVS_FILE_TRUNCATE ? O_TRUNC : 0;
	member.fd = open(path, oflags, 0600);
	if (member.fd < 0)
		return error_set(error, -errno, "cannot open %s: %s", path,
				 errno == ELOOP ? "it is a symbolic link, which is not followed"
						: nvs_strerror(-errno));
	rc = check_kind(member.fd, path, error);
	if (!rc && fcntl(member.fd, F_SETFL, oflags & ~O_NONBLOCK))
		rc = error_set(error, -errno, "cannot open %s: %s", path, nvs_strerror(-errno));
	if (rc) {
		close(member.fd);
		return rc;
	}
	return open_member(aio, &member, flags, out, error);
}

int nvs_file_from_fd(struct nvs_aio *aio, int fd, unsigned flags, struct nvs_file **out,
		     struct nvs_error *error)
{
	HOLD_CANCEL;
	char name[PATH_MAX + 32], link[32], path[PATH_MAX];
	struct file_member member = {.path = name, .direct_fd = -1};
	int oflags = fcntl(fd, F_GETFL), rc = oflags < 0 ? -errno : 0;
	ssize_t n;

	/* "descriptor 5 (/mnt/nvme/file)": the kernel's name of it, if /proc is mounted. */
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = fd < 0 ? -1 : readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	snprintf(name, sizeof(name), "descriptor %d%s%s%s", fd, n < 0 ? "" : " (", path,
		 n < 0 ? "" : ")");
	if (out)
		*out = NULL;
	if (!aio || !out)
		return error_set(error, -EINVAL, "the aio or the place for the file is NULL");
	if (rc)
		return error_set(error, rc, "%s: %s", name, nvs_strerror(rc));
	rc = check_flags(name, flags, NVS_FILE_WRITE | NVS_FILE_BUFFERED | NVS_FILE_UNITS, error);
	rc = rc ?: check_kind(fd, name, error);
	/* A descriptor with O_PATH reads as O_RDONLY, and is open for neither. */
	if (!rc && oflags & O_PATH)
		rc = error_set(error, -EINVAL, "%s is open with O_PATH only: open it for reading%s",
			       name, flags & NVS_FILE_WRITE ? " and writing" : "");
	if (!rc && (oflags & O_ACCMODE) != (flags & NVS_FILE_WRITE ? O_RDWR : O_RDONLY) &&
	    (oflags & O_ACCMODE) != O_RDWR)
		rc = error_set(error, -EINVAL, "%s must be open for reading%s", name,
			       flags & NVS_FILE_WRITE ? " and writing" : "");
	if (rc)
		return rc;
	/*
	 * A new description of the caller's file, without O_APPEND and O_DIRECT, which would change
	 * the meaning of offsets or require alignment. Without permission to reopen the file, a
	 * duplicate of a descriptor that has neither flag.
	 */
	member.fd = open(link, (oflags & O_ACCMODE) | O_CLOEXEC);
	if (member.fd < 0 && !(oflags & (O_APPEND | O_DIRECT)))
		member.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (member.fd < 0)
		return error_set(error, -errno, "cannot reopen %s: %s", name, nvs_strerror(-errno));
	/* nvs_file_close() closes it, but not the caller's. */
	assert(member.fd != fd && member.direct_fd < 0);
	return open_member(aio, &member, flags, out, error);
}

void nvs_file_close(struct nvs_file *file)
{
	HOLD_CANCEL;
	if (!file)
		return;
	if (file->aio) {
		/* Waits for the file's transfers; registered files stay open until the rings
		 * release them. */
		pthread_mutex_lock(&file->aio->lock);
		file_check(file);
		assert(!file->closing);
		file->closing = true;
		while (file->in_flight)
			pthread_cond_wait(&file->aio->done, &file->aio->lock);
		for (unsigned i = 0; i < file->nmembers; i++) {
			slot_give(file->aio, file->members[i].slot);
			slot_give(file->aio, file->members[i].direct_slot);
		}
		LIST_REMOVE(file, open);
		aio_sync(file->aio);
		requests_forget_file(file->aio, file);
		pthread_mutex_unlock(&file->aio->lock);
	}
	for (unsigned i = 0; i < file->nmembers; i++) {
		close(file->members[i].fd);
		if (file->members[i].direct_fd >= 0)
			close(file->members[i].direct_fd);
		free(file->members[i].path);
	}
	free(file);
}

bool nvs_file_direct(const struct nvs_file *file)
{
	return file && file->direct;
}

uint32_t nvs_file_unit(const struct nvs_file *file)
{
	if (file)
		file_check(file);
	return file ? file->offset_align : 0;
}

int nvs_file_sync(struct nvs_file *file, struct nvs_error *error)
{
	HOLD_CANCEL;
	if (!file)
		return error_set(error, -EINVAL, "the file is NULL");
	for (unsigned i = 0; i < file->nmembers; i++)
		if (fdatasync(file->members[i].fd)) {
			int rc = ended_with(-errno);

			return error_set(error, rc, "cannot make the writes to %s durable: %s",
					 file->members[i].path, nvs_strerror(rc));
		}
	return 0;
}
