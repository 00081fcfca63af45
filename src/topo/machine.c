/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Facts about the machine: memory and its limits, huge pages, the kernel's limits
 * on asynchronous I/O. Reads /proc and /sys, and changes nothing.
 */
#include <glob.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory/room.h"
#include "topo/sysfs.h"

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
