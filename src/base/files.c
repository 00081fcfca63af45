/* SPDX-License-Identifier: Apache-2.0 */
#include "base/files.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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

int file_read_all(int fd, size_t most, char **text, size_t *nbytes)
{
	size_t room = 0, used = 0;
	char *data = NULL;
	ssize_t n = 1;
	int rc = 0;

	while (n && !rc && used <= most) {
		if (used + 1 >= room) {
			char *more = realloc(data, room = room ? room * 2 : 16384);

			if (!more) {
				rc = -ENOMEM;
				break;
			}
			data = more;
		}
		n = read(fd, data + used, room - 1 - used);
		if (n < 0)
			rc = errno == EINTR ? 0 : -errno;
		else
			used += (size_t)n;
	}
	if (rc) {
		free(data);
		return rc;
	}
	data[used] = '\0';
	*text = data;
	*nbytes = used;
	return 0;
}

uint64_t file_number(const char *path, const char *key, uint64_t otherwise)
{
	FILE *file = fopen(path, "re");
	uint64_t number = otherwise;
	size_t n = strlen(key);
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, n) && sscanf(line + n, "%" SCNu64, &number) == 1)
			break;
	if (file)
		fclose(file);
	return number;
}

void unescape_mount(char *text)
{
	unsigned code;
	char *to = text;

	for (; *text; text++)
		/* A field that was cut may end within an escape. */
		if (*text == '\\' && strspn(text + 1, "01234567") >= 3 &&
		    sscanf(text, "\\%3o", &code) == 1) {
			*to++ = (char)code;
			text += 3;
		} else {
			*to++ = *text;
		}
	*to = '\0';
}

char *absolute_path(const char *path)
{
	char *here = *path == '/' ? NULL : getcwd(NULL, 0), *full = NULL;

	if (!here)
		return strdup(path);
	if (asprintf(&full, "%s/%s", here, path) < 0)
		full = NULL;
	free(here);
	return full;
}
