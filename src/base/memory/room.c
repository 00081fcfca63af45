/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/self/cgroup names the process's cgroup, and /proc/self/mountinfo where it lies. A container
 * sees its cgroup at the root of the mount, and the name either from there (a cgroup namespace) or
 * from the host's root, which is then the mount's root too. Every cgroup up to the mount's root may
 * have a limit, and its usage counts those below it.
 *
 * The page cache is in the usage, but the kernel drops it before it kills.
 */
#include "base/memory/room.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

/* An entry of a page table has 8 bytes for a page of 4096. */
#define PAGES_PER_TABLE_BYTE 512

/* v1 has no word for "no limit", but the most that it can count. */
#define NO_LIMIT_V1 ((uint64_t)INT64_MAX - (1 << 20))

/* Of 10 ms each, for another process to take its memory. */
#define TURN_PAUSES_MAX 6000u

/* The files of a cgroup, by the type of its file system. */
static const struct files {
	const char *filesystem, *limit, *usage, *cache[2];
} versions[] = {
	{"cgroup",
	 "memory.limit_in_bytes",
	 "memory.usage_in_bytes",
	 {"total_inactive_file ", "total_active_file "}},
	{"cgroup2", "memory.max", "memory.current", {"inactive_file ", "active_file "}},
};

/* ---- Files ---- */

static uint64_t number_in(const char *directory, const char *name, const char *key,
			  uint64_t otherwise)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", directory, name) >= (int)sizeof(path))
		return otherwise;
	return file_number(path, key, otherwise);
}

/* ---- Limits ---- */

static void examine_cgroup(const struct files *files, const char *directory,
			   struct memory_room *room)
{
	uint64_t limit = number_in(directory, files->limit, "", UINT64_MAX), used, left;

	if (limit >= NO_LIMIT_V1)
		return;
	used = number_in(directory, files->usage, "", 0);
	for (int i = 0; i < 2; i++) {
		uint64_t cache = number_in(directory, "memory.stat", files->cache[i], 0);

		used -= cache < used ? cache : used;
	}
	left = used < limit ? limit - used : 0;
	if (room->left != UINT64_MAX && left >= room->left)
		return;
	room->left = left;
	room->limit = limit;
	snprintf(room->file, sizeof(room->file), "%s/%s", directory, files->limit);
}

/* The rest of `path` below `root`; NULL: it lies elsewhere. */
static const char *rest_below(const char *path, const char *root)
{
	size_t n = strcmp(root, "/") ? strlen(root) : 0;

	if (strncmp(path, root, n) != 0 || (path[n] && path[n] != '/') || strstr(path + n, "/.."))
		return NULL;
	return path + n;
}

/*
 * Of one line of mountinfo: "ID PARENT DEVICE ROOT MOUNT OPTIONS [TAG]... - TYPE SOURCE OPTIONS".
 * Whether the cgroup lies below that mount. `from_root`: only that of the mount's root.
 */
static bool examine_mount(const struct files *files, char *line, const char *root,
			  const char *cgroup, bool from_root, struct memory_room *room)
{
	char *tail = strstr(line, " - "), *field[5], mount[PATH_MAX], type[32], options[256];
	const char *rest = "";

	if (!tail || sscanf(tail, " - %31s %*s %255s", type, options) != 2 ||
	    strcmp(type, files->filesystem) != 0 ||
	    (files == &versions[0] && !text_lists(options, "memory")))
		return false;
	for (unsigned i = 0; i < 5; i++) {
		field[i] = strsep(&line, " ");
		if (!field[i])
			return false;
		unescape_mount(field[i]);
	}
	if (!from_root)
		rest = rest_below(cgroup, field[3]);
	if (!rest || snprintf(mount, sizeof(mount), "%s%s", root, field[4]) >= (int)sizeof(mount))
		return false;

	size_t top = strlen(mount);
	char directory[PATH_MAX];

	/* The cgroup below the mount, and all above it. */
	if (snprintf(directory, sizeof(directory), "%s%s", mount, rest) < (int)sizeof(directory)) {
		for (size_t n = strlen(directory); n >= top; n--) {
			if (n > top && directory[n] && directory[n] != '/')
				continue;
			directory[n] = '\0';
			if (n == top || directory[n - 1] != '/')
				examine_cgroup(files, directory, room);
		}
	}
	return true;
}

static bool examine_mounts(const struct files *files, const char *root, const char *cgroup,
			   bool from_root, struct memory_room *room)
{
	char path[PATH_MAX], *line = NULL;
	bool found = false;
	size_t size = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/proc/self/mountinfo", root);
	file = fopen(path, "re");
	while (file && getline(&line, &size, file) > 0)
		if (examine_mount(files, line, root, cgroup, from_root, room))
			found = true;
	free(line);
	if (file)
		fclose(file);
	return found;
}

void memory_room_below(const char *root, struct memory_room *room)
{
	char path[PATH_MAX], *line = NULL;
	size_t size = 0;
	FILE *file;

	*room = (struct memory_room){.left = UINT64_MAX};
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	room->machine = file_number(path, "MemAvailable:", UINT64_MAX / 1024);
	room->machine = room->machine == UINT64_MAX / 1024 ? UINT64_MAX : room->machine * 1024;
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	file = fopen(path, "re");
	/* Lines of "NUMBER:CONTROLLERS:PATH"; v2 has "0::PATH". */
	while (file && getline(&line, &size, file) > 0) {
		char *controllers = strchr(line, ':');
		char *cgroup = controllers ? strchr(++controllers, ':') : NULL;
		const struct files *files;

		if (!cgroup)
			continue;
		*cgroup++ = '\0';
		cgroup[strcspn(cgroup, "\n")] = '\0';
		files = &versions[!*controllers];
		if (*controllers && !text_lists(controllers, "memory"))
			continue;
		/* If no mount has the cgroup, a mount's root may still be above it. */
		if (!examine_mounts(files, root, cgroup, false, room))
			examine_mounts(files, root, cgroup, true, room);
	}
	free(line);
	if (file)
		fclose(file);
}

void memory_room(struct memory_room *room)
{
	memory_room_below("", room);
}

int memory_room_turn(void)
{
	const struct timespec pause = {.tv_nsec = 10000000};
	struct memory_room room;
	int fd;

	memory_room(&room);
	fd = *room.file ? open(room.file, O_RDONLY | O_CLOEXEC) : -1;
	for (unsigned i = 0; fd >= 0; i++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return fd;
		if ((errno != EWOULDBLOCK && errno != EINTR) || i == TURN_PAUSES_MAX)
			break;
		nanosleep(&pause, NULL);
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* ---- The error ---- */

int memory_room_judge(const struct memory_room *room, uint64_t nbytes, const char *key,
		      const char *what, const char *remedy, struct nvs_error *error)
{
	uint64_t room_bytes = memory_room_bytes(room);
	char need[32], left[32], limit[32];

	if (nbytes <= room_bytes && nbytes / PAGES_PER_TABLE_BYTE <= room_bytes - nbytes)
		return 0;
	size_text(nbytes, need);
	size_text(room_bytes, left);
	if (room->left > room->machine)
		return error_about(error, -ENOMEM, key, 0, 0,
				   "%s needs %s (%llu bytes) of memory, more than the %s that the "
				   "machine has free: %s",
				   what, need, (unsigned long long)nbytes, left, remedy);
	return error_about(error, -ENOMEM, key, 0, 0,
			   "%s needs %s (%llu bytes) of memory, and the process's limit of %s (%s) "
			   "leaves %s: raise that limit (--mem of Slurm, MemoryMax= of the systemd "
			   "unit, --memory of the container), or %s",
			   what, need, (unsigned long long)nbytes, size_text(room->limit, limit),
			   room->file, left, remedy);
}

int memory_room_check(uint64_t nbytes, const char *key, const char *what, const char *remedy,
		      struct nvs_error *error)
{
	struct memory_room room;

	memory_room(&room);
	return memory_room_judge(&room, nbytes, key, what, remedy, error);
}
