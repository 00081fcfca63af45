/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the places of stores below a path by the names of its directories. Relies on member/names.c
 * for what is nvswap's. It opens no store's files, but for the label of a raw device, and follows
 * no links below the path.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* In the order of places: by rank, parameters first. */
static uint64_t key_of(const struct nvs_store_place *place)
{
	return (uint64_t)place->rank << 1 | place->optimizer;
}

/* False for another name, and for a rank that no engine makes, such as 007. */
static bool place_of(const char *name, struct nvs_store_place *place)
{
	unsigned long long rank;
	char *end, again[64];

	if (!member_is_store_name(name))
		return false;
	errno = 0;
	rank = strtoull(name + 4, &end, 10);
	if (errno || rank > UINT32_MAX)
		return false;
	*place = (struct nvs_store_place){.rank = (uint32_t)rank, .optimizer = *end != 0};
	place_name(place, again);
	return !strcmp(name, again);
}

static int find_in(int fd, const char *path, unsigned index, struct nvs_store_place *place,
		   struct nvs_error *error)
{
	DIR *directory = member_list(fd, ".");
	uint64_t least = 0;
	int rc = 0;

	if (!directory)
		return member_cannot(error, "list", path, -errno);
	for (unsigned i = 0; i <= index && !rc; i++) {
		struct dirent *entry;

		/* The place with the lowest key of at least `least`. */
		rc = -ENODATA;

		rewinddir(directory);
		while ((entry = readdir(directory))) {
			struct nvs_store_place other;

			if (!place_of(entry->d_name, &other) || key_of(&other) < least)
				continue;
			if (!rc && key_of(&other) >= key_of(place))
				continue;
			*place = other;
			rc = 0;
		}

		least = rc ? 0 : key_of(place) + 1;
	}
	closedir(directory);
	return rc ? error_set(error, rc, "%s holds no more stores", path) : 0;
}

static int find_below(const char *parent, unsigned index, struct nvs_store_place *place,
		      struct nvs_error *error)
{
	int from_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd, rc;
	char path[PATH_MAX];

	if (from_fd < 0 && errno == ENOENT && path_stands_for(parent))
		return error_set(error, -ENOENT, "%s %s", parent, path_stands_for(parent));
	if (from_fd < 0)
		return member_cannot(error, "open", parent, -errno);
	snprintf(path, sizeof(path), "%s/nvswap", parent);
	fd = openat(from_fd, "nvswap", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	rc = fd < 0 ? -errno : member_check_owner(fd, path, error);
	if (fd >= 0 && !rc)
		rc = member_check_entries(fd, path, member_is_entry_name, error);
	if (fd >= 0 && !rc)
		rc = find_in(fd, path, index, place, error);
	else if (rc == MEMBER_GONE || (fd < 0 && rc == -ENOENT))
		rc = error_set(error, -ENODATA, "%s holds no store", parent);
	else if (fd < 0 && (rc == -ENOTDIR || rc == -ELOOP))
		rc = member_refuse(error, path, "is a symbolic link or no directory");
	else if (fd < 0)
		rc = rc == -EACCES ? member_not_permitted(from_fd, "nvswap", path, error)
				   : member_cannot(error, "open", path, rc);
	if (fd >= 0)
		close(fd);
	close(from_fd);
	return rc;
}

int nvs_store_find(const char *path, unsigned index, struct nvs_store_place *place,
		   struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_store_place full = {.size = 0}, found = {.rank = 0};
	struct nvs_store_place here = {.size = sizeof(here), .paths = &path, .npaths = 1};
	struct nvs_store_info info = {.size = sizeof(info)};
	struct nvs_store *store;
	struct stat st;
	int rc;

	if (!path || !struct_sized(place))
		return error_set(error, -EINVAL,
				 "path or place is NULL, or place->size is not set");
	memcpy(&full, place, place->size < sizeof(full) ? place->size : sizeof(full));
	if (stat(path, &st) || !S_ISBLK(st.st_mode)) {
		rc = find_below(path, index, &found, error);
	} else if (index) {
		rc = error_set(error, -ENODATA, "%s holds no more stores", path);
	} else {
		/* The place that the label of a raw device has; one that is damaged has none, and
		 * rank 0. */
		rc = nvs_store_open(&here, 0, &store, error);
		if (!rc) {
			rc = nvs_store_get_info(store, &info);
			nvs_store_close(store);
			found.rank = info.rank;
			found.optimizer = info.optimizer;
		}
	}
	if (rc)
		return rc;
	full.rank = found.rank;
	full.optimizer = found.optimizer;
	return struct_out(place, &full, sizeof(full));
}
