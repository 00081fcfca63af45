/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What /proc and /sys say: small files, the drives that a block device consists of, and their NUMA
 * nodes; memory and its limits, huge pages, and the limits on asynchronous I/O. Relies on the layout
 * of /sys/dev/block and /sys/block; never writes.
 */
#include "topo/topo.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory/room.h"
#include "base/numbers.h"

/* Device mapper over md over partitions is three levels deep; more than this is a loop. */
#define DEPTH_MAX 16

int sysfs_text(char *text, size_t nbytes, const char *path_format, ...)
{
	char path[PATH_MAX];
	ssize_t length = -1;
	va_list args;
	int fd, rc;

	assert(nbytes > 0);
	va_start(args, path_format);
	rc = vsnprintf(path, sizeof(path), path_format, args);
	va_end(args);
	assert(rc < (int)sizeof(path)); /* names of devices have up to 63 bytes */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		length = read(fd, text, nbytes - 1);
	rc = length < 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	while (length > 0 && isspace((unsigned char)text[length - 1]))
		length--;
	text[length < 0 ? 0 : length] = '\0';
	return rc;
}

void sysfs_choice(char *text)
{
	char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;

	if (!close)
		return;
	memmove(text, open + 1, (size_t)(close - open - 1));
	text[close - open - 1] = '\0';
}

/*
 * Adds the drives that a block device lies on: its own, or the components of device mapper or md.
 */
static void add_beneath(char (*names)[64], unsigned *n, const char *directory, unsigned depth)
{
	char device[PATH_MAX], below[PATH_MAX + 16];
	const char *name;
	glob_t slaves;

	if (depth > DEPTH_MAX || !realpath(directory, device))
		return;
	snprintf(below, sizeof(below), "%s/partition", device);
	if (access(below, F_OK) == 0)
		*strrchr(device, '/') = '\0';
	snprintf(below, sizeof(below), "%s/slaves/*", device);
	if (!glob(below, GLOB_NOSORT, NULL, &slaves)) {
		for (size_t i = 0; i < slaves.gl_pathc; i++)
			add_beneath(names, n, slaves.gl_pathv[i], depth + 1);
		globfree(&slaves);
		return;
	}
	name = strrchr(device, '/') + 1;
	for (unsigned i = 0; i < *n; i++)
		if (!strcmp(names[i], name))
			return;
	if (*n < DEVICES_MAX && strlen(name) < sizeof(names[0]))
		strcpy(names[(*n)++], name);
}

static int compare_names(const void *a, const void *b)
{
	return strverscmp(a, b);
}

unsigned sysfs_disks(const char *root, unsigned major, unsigned minor, char names[DEVICES_MAX][64])
{
	char path[PATH_MAX];
	unsigned n = 0;

	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major, minor);
	add_beneath(names, &n, path, 0);
	/* glob and readdir give no stable order. */
	qsort(names, n, sizeof(names[0]), compare_names);
	return n;
}

int sysfs_node(const char *root, const char *device)
{
	/* The drive's parent; the PCI device above that (virtio, SCSI); and for an NVMe drive with
	 * multipath, the PCI device of each controller. */
	static const char *const places[] = {
		"device/numa_node",
		"device/device/numa_node",
		"device/nvme*/device/numa_node",
	};
	char pattern[PATH_MAX];
	int node = -1;

	for (unsigned i = 0; i < COUNT_OF(places); i++) {
		glob_t found;

		snprintf(pattern, sizeof(pattern), "%s/block/%s/%s", root, device, places[i]);
		if (glob(pattern, GLOB_NOSORT, NULL, &found))
			continue;
		for (size_t j = 0; j < found.gl_pathc; j++) {
			uint64_t its = file_number(found.gl_pathv[j], "", UINT64_MAX);

			if (its > INT_MAX || (node >= 0 && (int)its != node)) {
				globfree(&found);
				return -1;
			}
			node = (int)its;
		}
		globfree(&found);
	}
	return node;
}

/* ---- Facts about the machine ---- */

uint64_t memlock_limit(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
	unsigned long inside, outside, count;
	struct rlimit limit;
	char map[128];

	/* A capability lifts limits only in the initial user namespace. A kernel without user
	 * namespaces has no uid_map. */
	if (!syscall(SYS_capget, &header, data) &&
	    data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK) &&
	    (sysfs_text(map, sizeof(map), "/proc/self/uid_map")
		     ? !access("/proc/self/status", F_OK)
		     : sscanf(map, "%lu %lu %lu", &inside, &outside, &count) == 3 && !inside &&
			       !outside && count == 4294967295u))
		return UINT64_MAX;
	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		return 0;
	return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

void machine_facts(struct nvs_machine_info *info)
{
	static const char meminfo[] = "/proc/meminfo";
	char choices[64];
	struct memory_room room;
	struct utsname os;
	glob_t nodes;

	*info = (struct nvs_machine_info){.size = sizeof(struct nvs_machine_info),
					  .memlock_bytes = memlock_limit()};
	if (!uname(&os))
		snprintf(info->kernel, sizeof(info->kernel), "%.63s", os.release);
	info->cpus = (unsigned)sysconf(_SC_NPROCESSORS_ONLN);
	info->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	memory_room(&room);
	info->memory_free_bytes = memory_room_bytes(&room);
	info->memory_limit_bytes = room.limit;
	snprintf(info->memory_limit_file, sizeof(info->memory_limit_file), "%s", room.file);
	info->numa_nodes = 1;
	if (!glob(SYSFS "/devices/system/node/node[0-9]*", GLOB_NOSORT, NULL, &nodes)) {
		info->numa_nodes = (unsigned)nodes.gl_pathc;
		globfree(&nodes);
	}

	info->hugepages_total = file_number(meminfo, "HugePages_Total:", 0);
	info->hugepages_free = file_number(meminfo, "HugePages_Free:", 0);
	info->hugepage_bytes = file_number(meminfo, "Hugepagesize:", 0) * 1024;
	sysfs_text(choices, sizeof(choices), SYSFS "/kernel/mm/transparent_hugepage/enabled");
	sysfs_choice(choices);
	snprintf(info->transparent_hugepages, sizeof(info->transparent_hugepages), "%.15s",
		 choices);
	info->aio_nr = file_number("/proc/sys/fs/aio-nr", "", 0);
	info->aio_max_nr = file_number("/proc/sys/fs/aio-max-nr", "", 0);
	info->io_uring_disabled = (int)file_number("/proc/sys/kernel/io_uring_disabled", "",
						   (unsigned)-1);
}
