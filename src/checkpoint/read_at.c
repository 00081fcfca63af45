/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads of headers and records. With pread, never mapped, so a file that is truncated during a read
 * is an error and not a signal.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

int read_at(int fd, const char *path, uint64_t offset, void *data, size_t nbytes,
	    struct nvs_error *error)
{
	char *to = data;

	while (nbytes) {
		ssize_t got = pread(fd, to, nbytes, (off_t)offset);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return error_set(error, -errno, "%s: reading at byte %llu: %s", path,
					 (unsigned long long)offset, nvs_strerror(-errno));
		if (!got)
			return error_set(
				error, -ENODATA,
				"%s: ends at byte %llu: it was truncated while it was read", path,
				(unsigned long long)offset);
		to += got;
		offset += (uint64_t)got;
		nbytes -= (size_t)got;
	}
	return 0;
}
