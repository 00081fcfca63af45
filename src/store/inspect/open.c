/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the places of stores below a path, and opens and closes a store for inspection. Members are
 * opened read-only by the layer's own functions, so what is not nvswap's is refused here as
 * anywhere. Places are found by the names of directories: no store's files are opened but the label
 * of a raw device, and no links below the path are followed.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/struct_size.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "store/inspect/internal.h"
#include "store/member/internal.h"

/* ---- Places ---- */

int place_in(struct nvs_store_place *place, const struct nvs_store_place *from,
	     struct nvs_error *error)
{
	int rc = struct_in(place, sizeof(*place), from);

	if (rc)
		return struct_refused(error, rc, "nvs_store_place", "the place");
	if (!place->paths || !place->npaths || place->npaths > NVS_PATHS_MAX)
		return error_set(error, -EINVAL, "a place has 1 to %d paths", NVS_PATHS_MAX);
	for (unsigned i = 0; i < place->npaths; i++)
		if (!place->paths[i] || !*place->paths[i])
			return error_set(error, -EINVAL, "path %u of the place is NULL or empty",
					 i);
	return 0;
}

/* ---- Members ---- */

/*
 * The process that has locked the open file, from /proc/locks; 0: unknown. The kernel hides
 * processes of other namespaces, and some file systems have other device numbers there.
 */
static int owner_of(int fd, char name[64])
{
	char line[256], path[64];
	struct stat st;
	FILE *file;
	int pid = 0;

	name[0] = 0;
	if (fstat(fd, &st))
		return 0;
	file = fopen("/proc/locks", "re");
	while (file && !pid && fgets(line, sizeof(line), file)) {
		unsigned major_number, minor_number;
		uint64_t inode;
		int owner;

		/* Such as "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF". */
		if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%" SCNu64, &owner, &major_number,
			   &minor_number, &inode) == 4 &&
		    inode == st.st_ino && makedev(major_number, minor_number) == st.st_dev &&
		    owner > 0)
			pid = owner;
	}
	if (file)
		fclose(file);
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	file = pid ? fopen(path, "re") : NULL;
	if (file && fgets(name, 64, file))
		name[strcspn(name, "\n")] = 0;
	if (file)
		fclose(file);
	return pid;
}

/* A member that is missing or damaged is described; another error ends the inspection. */
static bool describable(const struct member *member, int rc)
{
	/* Its label was at least looked for, or its manifests were found without data. */
	if (rc == -EUCLEAN || rc == -EIO)
		return (member->fd >= 0 && member->base) || lacks_data(member);
	/* A device without capacity is too small for a store. */
	return (rc == -ENODATA || rc == -ENOENT) && (member->fd < 0 || member->capacity);
}

static int open_members(struct nvs_store *store, const struct nvs_store_place *place, bool lock,
			struct nvs_error *error)
{
	struct nvs_store_info *info = &store->info;

	for (unsigned i = 0; i < place->npaths; i++) {
		struct open_result *result = &store->open_results[i];
		char name[64];

		member_name(place->rank, place->optimizer, name);
		result->why = (struct nvs_error){.size = sizeof(result->why)};
		result->rc = member_open(store->members, i, place->paths[i], name,
					 lock ? MEMBER_READS : MEMBER_READS_BESIDE, &result->why);
		store->npaths = i + 1;
		if (!result->rc && !i && store->members[i].blank &&
		    store->members[i].kind == MEMBER_RAW)
			result->rc = error_set(&result->why, -ENODATA, "%s holds no store",
					       place->paths[i]);

		int rc = describable(&store->members[i], result->rc) ? 0 : result->rc;

		if (rc) {
			const struct member *member = &store->members[i];
			int pid = rc == -EBUSY && member->fd >= 0 ? owner_of(member->fd, name) : 0;

			error_copy(error, &result->why);
			return pid ? error_set(error, rc,
					       "the store at %s is in use by process %d (%s): "
					       "wait until it ends",
					       member->path, pid, name)
				   : rc;
		}
		if (store->members[i].in_use && !info->in_use) {
			info->in_use = true;
			info->owner = owner_of(store->members[i].fd, info->owner_name);
		}
	}

	const struct open_result *first = &store->open_results[0];

	/* A store is partial only if a path has something of it. */
	for (unsigned i = 0; i < store->npaths; i++)
		if (!inspect_missing(store, i))
			return 0;
	error_copy(error, &first->why);
	return first->rc;
}

int nvs_store_open(const struct nvs_store_place *asked, unsigned flags, struct nvs_store **out,
		   struct nvs_error *error)
{
	HOLD_CANCEL;
	struct nvs_store_place place;
	struct nvs_store *store;
	int rc = 0;

	if (out)
		*out = NULL;
	if (!out || flags & ~(unsigned)NVS_STORE_LOCK)
		return error_set(error, -EINVAL, "store is NULL, or a flag is unknown");
	rc = place_in(&place, asked, error);
	if (rc)
		return rc;
	store = calloc(1, sizeof(*store));
	if (!store)
		return error_no_memory(error, "opening a store");
	store->locked = flags & NVS_STORE_LOCK;
	store->info.rank = place.rank;
	store->info.optimizer = place.optimizer;
	store->info.nmembers = place.npaths;
	rc = open_members(store, &place, flags & NVS_STORE_LOCK, error);
	rc = rc ?: inspect_read(store, error);
	if (rc) {
		nvs_store_close(store);
		return rc;
	}
	inspect_check(store);
	/* An inspection must not keep an engine waiting. */
	for (unsigned i = 0; i < store->npaths && !(flags & NVS_STORE_LOCK); i++)
		member_unlock(&store->members[i]);
	*out = store;
	return 0;
}

void nvs_store_close(struct nvs_store *store)
{
	HOLD_CANCEL;
	if (!store)
		return;
	nvs_file_close(store->file);
	if (store->has_slots)
		slots_close(&store->slots);
	for (unsigned i = 0; i < store->npaths; i++)
		member_close(&store->members[i]);
	manifest_free(&store->found);
	free(store);
}

/* ---- Finding ---- */

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
	place->rank = (uint32_t)rank;
	place->optimizer = *end != 0;
	member_name(place->rank, place->optimizer, again);
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
			place->rank = other.rank;
			place->optimizer = other.optimizer;
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
	struct nvs_store_place full = {.size = 0};
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
		rc = find_below(path, index, &full, error);
	} else if (index) {
		rc = error_set(error, -ENODATA, "%s holds no more stores", path);
	} else {
		/* The place that the label of a raw device has; one that is damaged has none, and
		 * rank 0. */
		rc = nvs_store_open(&here, 0, &store, error);
		if (!rc) {
			rc = nvs_store_get_info(store, &info);
			nvs_store_close(store);
			full.rank = info.rank;
			full.optimizer = info.optimizer;
		}
	}
	return rc ?: struct_out(place, &full, sizeof(full));
}
