/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and block devices that an aio transfers from and to.
 *
 * A descriptor that the program has open:
 *
 *	rc = nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &file, &error);
 *	if (!rc && nvs_file_direct(file))
 *		printf("direct I/O in units of %u bytes\n", nvs_file_unit(file));
 */
#ifndef NVSWAP_FILE_H
#define NVSWAP_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "nvswap/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_aio;
struct nvs_file;

enum nvs_file_flags {
	NVS_FILE_WRITE = 1,    /* open for reading and writing; otherwise for reading only */
	NVS_FILE_CREATE = 2,   /* with NVS_FILE_WRITE: create it with mode 0600 if there is none */
	NVS_FILE_TRUNCATE = 4, /* with NVS_FILE_WRITE: truncate it to length 0 */
	NVS_FILE_BUFFERED = 8, /* use the page cache even if O_DIRECT works */
	/*
	 * Every write begins and ends at a multiple of nvs_file_unit(), others are -EINVAL. Then
	 * none passes through the page cache, even where the unit is smaller than a page.
	 */
	NVS_FILE_UNITS = 16,
};

/*
 * Opens a file or block device for transfers, with O_DIRECT if the file system supports it (see
 * nvs_file_direct). A symbolic link as the last component is not followed. Never blocks on a FIFO.
 * Errors:
 * -EINVAL  an argument is NULL, a flag is unknown or needs NVS_FILE_WRITE, or the path is neither a
 *          file nor a block device, or a file of proc or sysfs
 * -EISDIR  the path is a directory
 * -ELOOP   its last component is a symbolic link
 * -ENOMEM
 * Others   those of open(2)
 */
NVS_API int nvs_file_open(struct nvs_aio *aio, const char *path, unsigned flags,
			  struct nvs_file **file, struct nvs_error *error);
/*
 * Opens the file of a descriptor for transfers, as nvs_file_open does that of a path. The
 * descriptor stays the caller's and may be closed at once. The file is reopened through
 * /proc/self/fd, for direct I/O where possible; see nvs_file_direct. O_APPEND of the descriptor
 * does not count. `flags` are NVS_FILE_WRITE, for which the descriptor must be open for reading and
 * writing, NVS_FILE_BUFFERED and NVS_FILE_UNITS.
 * Errors:
 * -EINVAL  an argument is NULL, a flag is not one of these, the descriptor is neither of a file nor
 *          of a block device, or is not open for what the flags ask; with O_PATH it is open for
 *          nothing
 * -EISDIR  it is a directory
 * -EBADF   it is not open
 * -ENOMEM
 * Others   those of open(2)
 */
NVS_API int nvs_file_from_fd(struct nvs_aio *aio, int fd, unsigned flags, struct nvs_file **file,
			     struct nvs_error *error);
/*
 * Closes a file: waits for its transfers in flight, including overdue ones, and not for the log
 * function.
 * None may be submitted during the call or afterwards. `file` may be NULL. Like opening a file, it
 * interrupts the waits of all workers.
 */
NVS_API void nvs_file_close(struct nvs_file *file);
/* Returns whether a file was opened with O_DIRECT; false if `file` is NULL. */
NVS_API bool nvs_file_direct(const struct nvs_file *file);
/* Returns the direct-I/O alignment of a file's offsets and lengths in bytes: 512 for many drives, 1
 * without O_DIRECT, 0 if `file` is NULL. */
NVS_API uint32_t nvs_file_unit(const struct nvs_file *file);
/*
 * Makes completed writes to a file durable. Any thread may call it, while transfers are in flight.
 * Errors: those of fdatasync(2), and
 * -EINVAL  `file` is NULL
 */
NVS_API int nvs_file_sync(struct nvs_file *file, struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
