/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_limit.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include "base/error.h"

int file_may_grow(const char *path, uint64_t nbytes, struct nvs_error *error)
{
	struct rlimit limit;
	char need[32], most[32];

	assert(path && *path);
	assert(nbytes && nbytes <= INT64_MAX);
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ||
	    nbytes <= limit.rlim_cur)
		return 0;
	return error_set(error, -ENOSPC,
			 "%s needs %s, but this process may write files of at most %s: raise the "
			 "limit (ulimit -f unlimited)",
			 path, size_text(nbytes, need), size_text(limit.rlim_cur, most));
}

int file_reserve(int fd, int mode, uint64_t nbytes)
{
	int rc;

	assert(fd >= 0);
	assert(nbytes && nbytes <= INT64_MAX);
	do
		rc = fallocate(fd, mode, 0, (off_t)nbytes);
	while (rc && errno == EINTR);
	return rc;
}
