/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths are compared as they are written; two names of one directory are the store's to find, which
 * locks what it opens. Nothing here looks at a file system.
 */
#include "config/paths.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Without the slashes at its end, which make no other path; "/" is itself. */
static size_t bare_length(const char *path)
{
	size_t length = strlen(path);

	while (length > 1 && path[length - 1] == '/')
		length--;
	return length;
}

const char *path_flaw(const char *const *paths, unsigned i)
{
	size_t length;

	if (!paths[i])
		return "is NULL; give each path a name";
	length = strlen(paths[i]);
	if (!length)
		return "is empty; name a directory on the drive or a raw block device";
	if (length > PATH_BYTES_MAX)
		return "is longer than 3840 bytes, the limit";
	length = bare_length(paths[i]);
	for (unsigned j = 0; j < i; j++)
		if (bare_length(paths[j]) == length && !memcmp(paths[i], paths[j], length))
			return "stands in the list twice; stripes need different drives";
	return NULL;
}

int paths_copy(char **copies, const char *const *paths, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		copies[i] = strdup(paths[i]);
		if (!copies[i]) {
			paths_free(copies, i);
			return -ENOMEM;
		}
	}
	return 0;
}

void paths_free(char **paths, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		free(paths[i]);
		paths[i] = NULL;
	}
}

int nvs_config_set_paths(struct nvs_offload_config *offload, const char *const *paths, unsigned n,
			 struct nvs_error *error)
{
	char *copies[NVS_PATHS_MAX] = {NULL};
	int result;

	if (!n || n > NVS_PATHS_MAX)
		return error_about(error, -EINVAL, "nvme_path", 0, 0,
				   "%u paths for nvme_path; there may be 1 to %d", n,
				   NVS_PATHS_MAX);
	for (unsigned i = 0; i < n; i++) {
		const char *flaw = path_flaw(paths, i);

		if (flaw)
			return error_about(error, -EINVAL, "nvme_path", 0, 0,
					   "nvme_path \"%.200s\" %s", paths[i] ? paths[i] : "",
					   flaw);
	}
	result = paths_copy(copies, paths, n);
	if (result)
		return error_about(error, result, "nvme_path", 0, 0, "no memory for nvme_path");
	paths_free(offload->nvme_path, offload->npaths);
	memcpy(offload->nvme_path, copies, sizeof(copies));
	offload->npaths = n;
	offload->device = NVS_DEVICE_NVME;
	return 0;
}
