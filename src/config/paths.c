/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares paths as text, without accessing the file system. The store detects two names of one
 * directory by its locks.
 */
#include "config/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* Length without trailing slashes, except for "/" itself. */
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
		return "is NULL; give every path";
	length = strlen(paths[i]);
	if (!length)
		return "is empty; name a directory on the drive or a raw block device";
	if (length > PATH_BYTES_MAX)
		return "is longer than the limit of 3840 bytes";
	length = bare_length(paths[i]);
	for (unsigned j = 0; j < i; j++)
		if (bare_length(paths[j]) == length && !memcmp(paths[i], paths[j], length))
			return "is in the list twice; stripes need different drives";
	return NULL;
}

int paths_copy(struct offload_config *into, const char *const *paths, unsigned n)
{
	memset(into->nvme_path, 0, sizeof(into->nvme_path));
	for (into->npaths = 0; into->npaths < n; into->npaths++) {
		into->nvme_path[into->npaths] = strdup(paths[into->npaths]);
		if (!into->nvme_path[into->npaths]) {
			paths_free(into);
			return -ENOMEM;
		}
	}
	return 0;
}

void paths_free(struct offload_config *offload)
{
	while (offload->npaths)
		free(offload->nvme_path[--offload->npaths]);
}

int config_set_paths(struct offload_config *offload, const char *const *paths, unsigned n,
		     struct nvs_error *error)
{
	struct offload_config fresh = *offload;
	int result;

	if (!n || n > NVS_PATHS_MAX)
		return error_about(error, -EINVAL, "nvme_path", 0, 0,
				   "nvme_path has %u paths; it must have 1 to %d", n,
				   NVS_PATHS_MAX);
	for (unsigned i = 0; i < n; i++) {
		const char *flaw = path_flaw(paths, i);

		if (!flaw)
			flaw = path_stands_for(paths[i]);
		if (flaw)
			return error_about(error, -EINVAL, "nvme_path", 0, 0,
					   "nvme_path \"%.200s\" %s", paths[i] ? paths[i] : "",
					   flaw);
	}
	result = paths_copy(&fresh, paths, n);
	if (result)
		return error_about(error, result, "nvme_path", 0, 0, "out of memory for nvme_path");
	paths_free(offload);
	fresh.device = NVS_DEVICE_NVME;
	*offload = fresh;
	return 0;
}

int nvs_config_set_paths(struct nvs_config *config, enum nvs_block block, const char *const *paths,
			 unsigned n, struct nvs_error *error)
{
	if (!config || !paths)
		return error_set(error, -EINVAL, "%s is NULL", config ? "paths" : "config");
	if (!block_exists(block))
		return error_set(error, -EINVAL, "block is %d: there is no such block", (int)block);
	return config_set_paths(&config->offload[block], paths, n, error);
}

const char *nvs_config_get_path(const struct nvs_config *config, enum nvs_block block, unsigned i)
{
	if (!config || !block_exists(block) || i >= config->offload[block].npaths)
		return NULL;
	return config->offload[block].nvme_path[i];
}
