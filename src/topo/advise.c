/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvs_machine_advise: turns facts about the machine and a path into advice, by cost, the highest
 * first. Each line names a problem and the command that fixes it. Nothing but the facts is seen, so
 * the same facts always give the same advice.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/struct_size.h"

#define LINE_BYTES sizeof(((struct nvs_advice *)0)->line[0])
#define LINES_MAX  (sizeof(((struct nvs_advice *)0)->line) / LINE_BYTES)

#define MIB (1024u * 1024u)

/* The default pool of offload_param: 5 buffers of 1e8 elements of two bytes. */
#define DEFAULT_POOL_BYTES (5 * UINT64_C(100000000) * 2)

__attribute__((format(printf, 2, 3))) static void add(struct nvs_advice *advice, const char *format,
						      ...)
{
	va_list args;

	assert(advice->count < LINES_MAX);
	va_start(args, format);
	vsnprintf(advice->line[advice->count++], LINE_BYTES, format, args);
	va_end(args);
}

/* Virtual drives; their rotational flag says nothing about the real drive. */
static bool is_virtual(const struct nvs_path_info *path)
{
	return !strncmp(path->device, "vd", 2) || !strncmp(path->device, "xvd", 3) ||
	       !strncmp(path->device, "loop", 4);
}

/* Paths on which swapping makes little sense. */
static void advise_place(const struct nvs_path_info *path, struct nvs_advice *advice)
{
	if (!path->direct &&
	    (!strcmp(path->filesystem, "tmpfs") || !strcmp(path->filesystem, "ramfs")))
		add(advice,
		    "%.100s is %s, so data swapped there stays in memory: use a directory on a "
		    "drive (findmnt -t ext4,xfs lists some)",
		    path->path, path->filesystem);
	else if (!path->direct)
		add(advice,
		    "%.80s (%s) has no direct I/O, so all data is copied through the page cache: "
		    "use a directory on ext4 or xfs (findmnt -t ext4,xfs lists some)",
		    path->path, path->filesystem[0] ? path->filesystem : "unknown file system");
	if (path->rotational && !is_virtual(path))
		add(advice,
		    "%s is a rotating disk, far slower than NVMe: use a path on a solid-state "
		    "drive (lsblk -d -o NAME,ROTA,SIZE,MODEL shows 0 under ROTA)",
		    path->device);
}

static void advise_io_uring(const struct nvs_machine_info *machine, struct nvs_advice *advice)
{
	unsigned major = 0, minor = 0;

	if (machine->ioengine[NVS_IOENGINE_IO_URING].works)
		return;
	if (machine->io_uring_disabled == 1)
		add(advice,
		    "io_uring is restricted to one group (kernel.io_uring_disabled=1): as root: "
		    "sysctl -w kernel.io_uring_disabled=0, or join the group that "
		    "sysctl kernel.io_uring_group shows");
	else if (machine->io_uring_disabled > 0)
		add(advice,
		    "io_uring is disabled (kernel.io_uring_disabled=%d), which costs CPU time: as "
		    "root: sysctl -w kernel.io_uring_disabled=0",
		    machine->io_uring_disabled);
	else if (sscanf(machine->kernel, "%u.%u", &major, &minor) == 2 &&
		 (major < 5 || (major == 5 && minor < 1)))
		add(advice,
		    "Linux %.60s has no io_uring, which costs CPU time: use Linux 5.11 or later",
		    machine->kernel);
	else if (strstr(machine->ioengine[NVS_IOENGINE_IO_URING].reason, "memlock"))
		add(advice, "the memlock limit is too small for io_uring, which costs CPU time: "
			    "ulimit -l unlimited");
	else
		add(advice, "io_uring is blocked, most likely by the container's seccomp profile: "
			    "docker run --security-opt seccomp=unconfined, or a profile that "
			    "allows io_uring_setup, io_uring_enter and io_uring_register");
}

static void advise_memory(const struct nvs_machine_info *machine, struct nvs_advice *advice)
{
	uint64_t limit = machine->memory_limit_bytes, memory = machine->memory_bytes;
	uint64_t quarter = (limit ? min_u64(limit, memory) : memory) / 4;
	/* The pool to expect: the default, or a quarter of a small machine's memory. */
	uint64_t pool = quarter ? min_u64(quarter, DEFAULT_POOL_BYTES) : DEFAULT_POOL_BYTES;
	unsigned long long page = machine->hugepage_bytes, free = machine->hugepages_free;
	unsigned long long needed = page ? (pool + page - 1) / page : 0;
	unsigned long long nr = machine->aio_nr, max = machine->aio_max_nr;
	char text[32], of_pool[32];

	if (machine->memlock_bytes < pool)
		add(advice,
		    "only %s may be locked, but a pool takes %s: ulimit -l unlimited "
		    "(permanently: '* - memlock unlimited' in /etc/security/limits.conf; docker "
		    "run --ulimit memlock=-1)",
		    size_text(machine->memlock_bytes, text), size_text(pool, of_pool));
	/* Pages in use by others stay in use, so ask for the free ones on top. */
	if (free < needed)
		add(advice,
		    "%llu huge pages of %s are free, but a pool of %s takes %llu: as root: sysctl "
		    "-w vm.nr_hugepages=%llu",
		    free, size_text(page, text), size_text(pool, of_pool), needed,
		    (unsigned long long)machine->hugepages_total - free + needed);
	if (!strcmp(machine->transparent_hugepages, "never"))
		add(advice,
		    "transparent huge pages are off, so a pool without explicit huge pages gets "
		    "small ones: as root: echo madvise > "
		    "/sys/kernel/mm/transparent_hugepage/enabled");
	if (max && nr >= max - max / 10)
		add(advice,
		    "%llu of the %llu libaio events of this machine are in use: as root: "
		    "sysctl -w fs.aio-max-nr=%llu",
		    nr, max, max < 524288 ? 1048576 : max * 2);
}

static void advise_drive(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			 struct nvs_advice *advice)
{
	char devices[80], text[32], other[32];

	/* In a shell path: "nvme0n1", or "{nvme0n1,nvme1n1}" for several. */
	snprintf(devices, sizeof(devices), strchr(path->device, ',') ? "{%s}" : "%s", path->device);
	if (path->scheduler[0] && strcmp(path->scheduler, "none") != 0 &&
	    (!strncmp(path->device, "nvme", 4) || is_virtual(path)))
		add(advice,
		    "the I/O scheduler %s costs CPU time and reorders I/Os: as root: echo none | "
		    "tee /sys/block/%s/queue/scheduler",
		    path->scheduler, devices);
	if (path->max_io_bytes && path->max_io_bytes < MIB &&
	    path->max_hw_io_bytes > path->max_io_bytes)
		add(advice,
		    "the kernel splits I/Os into %s, though %s takes larger ones: as root: echo "
		    "%u | tee /sys/block/%s/queue/max_sectors_kb",
		    size_text(path->max_io_bytes, text), path->device,
		    (unsigned)min_u64(path->max_hw_io_bytes, MIB) / 1024, devices);
	if (path->device[0] && machine->numa_nodes >= 2 && path->numa_node < 0)
		add(advice,
		    "the NUMA node of %s is unknown or not unique, so the pool may be far from "
		    "it: numactl --cpunodebind=N --membind=N (lstopo shows the nodes of devices)",
		    path->device);
	if (path->direct && (path->dio_offset_align > 4096 || path->dio_mem_align > 4096))
		add(advice,
		    "%.80s does direct I/O in units of %s of file and %s of memory, which wastes "
		    "space for small tensors: prefer a file system with blocks of 4 KiB "
		    "(mkfs.xfs -b size=4096)",
		    path->path, size_text(path->dio_offset_align, text),
		    size_text(path->dio_mem_align, other));
	if (!path->block_device && path->free_bytes < path->total_bytes / 10)
		add(advice,
		    "only %s of %s are free at %.100s; stores may not fit, and drives slow down "
		    "as they fill: delete files, then as root: fstrim -a",
		    size_text(path->free_bytes, text), size_text(path->total_bytes, other),
		    path->path);
}

int nvs_machine_advise(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
		       struct nvs_advice *advice)
{
	struct nvs_advice full = {.size = sizeof(full)};
	struct nvs_machine_info of_machine;
	struct nvs_path_info of_path;
	int rc = struct_in(&of_machine, sizeof(of_machine), machine);

	if (!rc && path)
		rc = struct_in(&of_path, sizeof(of_path), path);
	if (rc)
		return rc;
	if (path)
		advise_place(&of_path, &full);
	advise_io_uring(&of_machine, &full);
	advise_memory(&of_machine, &full);
	if (path)
		advise_drive(&of_machine, &of_path, &full);
	return struct_out(advice, &full, sizeof(full));
}
