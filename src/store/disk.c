/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes labels and manifests by plain system calls: they are small and rare. Tensor data
 * never passes here.
 */
#include "store/disk.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/error.h"

static int io_failed(const char *what, const char *path, uint64_t offset, int code,
		     struct nvs_error *error)
{
	code = ended_with(code);
	return error_cause(error, NVS_CAUSE_IO, path,
			   error_about(error, code, "", 0, offset,
				       "%s %s at offset %" PRIu64 " failed: %s", what, path, offset,
				       nvs_strerror(code)));
}

int disk_read(int fd, const char *path, void *data, size_t nbytes, uint64_t offset,
	      struct nvs_error *error)
{
	size_t done = 0;

	assert(offset <= INT64_MAX - nbytes);
	while (done < nbytes) {
		ssize_t n = pread(fd, (uint8_t *)data + done, nbytes - done,
				  (off_t)(offset + done));

		if (n < 0 && errno != EINTR)
			return io_failed("reading", path, offset + done, -errno, error);
		if (n == 0)
			break;
		done += n > 0 ? (size_t)n : 0;
	}
	memset((uint8_t *)data + done, 0, nbytes - done);
	return 0;
}

/*
 * Writes go to the drive piece by piece: a long one in its queue, or in fdatasync(), would delay
 * the reads of others for as long.
 */
#define PIECE_BYTES (64 * 1024)

int disk_write(int fd, const char *path, const void *data, size_t nbytes, uint64_t offset,
	       struct nvs_error *error)
{
	size_t done = 0;

	assert(offset <= INT64_MAX - nbytes);
	while (done < nbytes) {
		ssize_t n = pwrite(fd, (const uint8_t *)data + done,
				   min_u64(nbytes - done, PIECE_BYTES), (off_t)(offset + done));

		if (n == 0 || (n < 0 && errno != EINTR))
			return io_failed("writing", path, offset + done, n ? -errno : -EIO, error);
		/* disk_sync() makes it durable, and reports what fails here. */
		if (n > 0)
			(void)sync_file_range(fd, (off_t)(offset + done), n,
					      SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
		done += n > 0 ? (size_t)n : 0;
	}
	return 0;
}

int disk_sync(int fd, const char *path, struct nvs_error *error)
{
	int rc = fdatasync(fd) ? ended_with(-errno) : 0;

	return !rc ? 0 : error_set(error, rc, "cannot make %s durable: %s", path, nvs_strerror(rc));
}
