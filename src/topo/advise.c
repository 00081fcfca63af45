/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvs_machine_advise: rules that turn facts about the machine and a path into advice. Each rule is
 * one function that names a problem and the command that fixes it, or leaves its line empty. The
 * rules see nothing but the facts, so the same facts always give the same advice.
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

typedef void rule_fn(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
		     char *line);

static void __attribute__((format(printf, 2, 3))) say(char *line, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(line, LINE_BYTES, format, args);
	va_end(args);
}

/* The pool to expect on this machine: the default, or a quarter of a small machine's memory. */
static uint64_t likely_pool(const struct nvs_machine_info *machine)
{
	uint64_t limit = machine->memory_limit_bytes, memory = machine->memory_bytes;
	uint64_t quarter = (limit && limit < memory ? limit : memory) / 4;

	return quarter && quarter < DEFAULT_POOL_BYTES ? quarter : DEFAULT_POOL_BYTES;
}

/* The device in a shell path: "nvme0n1", or "{nvme0n1,nvme1n1}" for several. */
static const char *shell_devices(const struct nvs_path_info *path, char text[80])
{
	bool several = strchr(path->device, ',') != NULL;

	snprintf(text, 80, several ? "{%s}" : "%s", path->device);
	return text;
}

/* Virtual drives; their rotational flag says nothing about the real drive. */
static bool is_virtual(const struct nvs_path_info *path)
{
	return !strncmp(path->device, "vd", 2) || !strncmp(path->device, "xvd", 3) ||
	       !strncmp(path->device, "loop", 4);
}

static void no_direct_io(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			 char *line)
{
	(void)machine;
	if (!path || path->direct)
		return;
	if (!strcmp(path->filesystem, "tmpfs") || !strcmp(path->filesystem, "ramfs"))
		say(line,
		    "%.100s is %s, so data swapped there stays in memory: use a directory on a "
		    "drive "
		    "(findmnt -t ext4,xfs lists some)",
		    path->path, path->filesystem);
	else
		say(line,
		    "%.80s (%s) has no direct I/O, so all data is copied through the page cache: "
		    "use a directory on ext4 or xfs (findmnt -t ext4,xfs lists some)",
		    path->path, path->filesystem[0] ? path->filesystem : "unknown file system");
}

static void io_uring_disabled(const struct nvs_machine_info *machine,
			      const struct nvs_path_info *path, char *line)
{
	(void)path;
	if (machine->ioengine[NVS_IOENGINE_IO_URING].works || machine->io_uring_disabled <= 0)
		return;
	if (machine->io_uring_disabled == 1)
		say(line,
		    "io_uring is restricted to one group (kernel.io_uring_disabled=1): as root: "
		    "sysctl -w kernel.io_uring_disabled=0, or join the group that "
		    "sysctl kernel.io_uring_group shows");
	else
		say(line,
		    "io_uring is disabled (kernel.io_uring_disabled=%d), which costs CPU time: as "
		    "root: sysctl -w kernel.io_uring_disabled=0",
		    machine->io_uring_disabled);
}

static void io_uring_blocked(const struct nvs_machine_info *machine,
			     const struct nvs_path_info *path, char *line)
{
	unsigned major = 0, minor = 0;

	(void)path;
	if (machine->ioengine[NVS_IOENGINE_IO_URING].works || machine->io_uring_disabled > 0)
		return;
	if (sscanf(machine->kernel, "%u.%u", &major, &minor) == 2 &&
	    (major < 5 || (major == 5 && minor < 1)))
		say(line,
		    "Linux %.60s has no io_uring, which costs CPU time: use Linux 5.11 or later",
		    machine->kernel);
	else if (strstr(machine->ioengine[NVS_IOENGINE_IO_URING].reason, "memlock"))
		say(line, "the memlock limit is too small for io_uring, which costs CPU time: "
			  "ulimit -l unlimited");
	else
		say(line, "io_uring is blocked, most likely by the container's seccomp profile: "
			  "docker run --security-opt seccomp=unconfined, or a profile that allows "
			  "io_uring_setup, io_uring_enter and io_uring_register");
}

static void memlock_small(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			  char *line)
{
	char limit[32], pool[32];

	(void)path;
	if (machine->memlock_bytes >= likely_pool(machine))
		return;
	say(line,
	    "only %s may be locked, but a pool takes %s: ulimit -l unlimited (permanently: '* - "
	    "memlock "
	    "unlimited' in /etc/security/limits.conf; docker run --ulimit memlock=-1)",
	    size_text(machine->memlock_bytes, limit), size_text(likely_pool(machine), pool));
}

static void hugepages_short(const struct nvs_machine_info *machine,
			    const struct nvs_path_info *path, char *line)
{
	unsigned long long page = machine->hugepage_bytes, free = machine->hugepages_free;
	unsigned long long needed, total;

	char size[32], pool[32];

	(void)path;
	if (!page)
		return;
	needed = (likely_pool(machine) + page - 1) / page;
	if (free >= needed)
		return;
	/* Pages in use by others stay in use, so ask for the free ones on top. */
	total = machine->hugepages_total - free + needed;
	say(line,
	    "%llu huge pages of %s are free, but a pool of %s takes %llu: as root: sysctl -w "
	    "vm.nr_hugepages=%llu",
	    free, size_text(page, size), size_text(likely_pool(machine), pool), needed, total);
}

static void transparent_hugepages_off(const struct nvs_machine_info *machine,
				      const struct nvs_path_info *path, char *line)
{
	(void)path;
	if (strcmp(machine->transparent_hugepages, "never") != 0)
		return;
	say(line,
	    "transparent huge pages are off, so a pool without explicit huge pages gets "
	    "small ones: as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

static void aio_exhausted(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			  char *line)
{
	uint64_t nr = machine->aio_nr, max = machine->aio_max_nr;

	(void)path;
	if (!max || nr < max - max / 10)
		return;
	say(line,
	    "%llu of the %llu libaio events of this machine are in use: as root: "
	    "sysctl -w fs.aio-max-nr=%llu",
	    (unsigned long long)nr, (unsigned long long)max,
	    (unsigned long long)(max < 524288 ? 1048576 : max * 2));
}

static void scheduler_in_the_way(const struct nvs_machine_info *machine,
				 const struct nvs_path_info *path, char *line)
{
	char devices[80];

	(void)machine;
	if (!path || !path->scheduler[0] || !strcmp(path->scheduler, "none") ||
	    (strncmp(path->device, "nvme", 4) != 0 && !is_virtual(path)))
		return;
	say(line,
	    "the I/O scheduler %s costs CPU time and reorders I/Os: as root: echo none | tee "
	    "/sys/block/%s/queue/scheduler",
	    path->scheduler, shell_devices(path, devices));
}

static void ios_are_split(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			  char *line)
{
	char now[32], devices[80];
	uint32_t wanted;

	(void)machine;
	if (!path || !path->max_io_bytes || path->max_io_bytes >= MIB ||
	    path->max_hw_io_bytes <= path->max_io_bytes)
		return;
	wanted = path->max_hw_io_bytes < MIB ? path->max_hw_io_bytes : MIB;
	say(line,
	    "the kernel splits I/Os into %s, though %s takes larger ones: as root: echo %u | tee "
	    "/sys/block/%s/queue/max_sectors_kb",
	    size_text(path->max_io_bytes, now), path->device, wanted / 1024,
	    shell_devices(path, devices));
}

static void drive_rotates(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			  char *line)
{
	(void)machine;
	if (!path || !path->rotational || is_virtual(path))
		return;
	say(line,
	    "%s is a rotating disk, far slower than NVMe: use a path on a solid-state drive "
	    "(lsblk -d -o NAME,ROTA,SIZE,MODEL shows 0 under ROTA)",
	    path->device);
}

static void alignment_large(const struct nvs_machine_info *machine,
			    const struct nvs_path_info *path, char *line)
{
	char offset[32], mem[32];

	(void)machine;
	if (!path || !path->direct ||
	    (path->dio_offset_align <= 4096 && path->dio_mem_align <= 4096))
		return;
	say(line,
	    "%.80s does direct I/O in units of %s of file and %s of memory, which wastes space for "
	    "small tensors: prefer a file system with blocks of 4 KiB (mkfs.xfs -b size=4096)",
	    path->path, size_text(path->dio_offset_align, offset),
	    size_text(path->dio_mem_align, mem));
}

static void nearly_full(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			char *line)
{
	char left[32], total[32];

	(void)machine;
	if (!path || path->block_device || path->free_bytes >= path->total_bytes / 10)
		return;
	say(line,
	    "only %s of %s are free at %.100s; stores may not fit, and drives slow down as they "
	    "fill: delete files, then as root: fstrim -a",
	    size_text(path->free_bytes, left), size_text(path->total_bytes, total), path->path);
}

static void node_unknown(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
			 char *line)
{
	if (!path || !path->device[0] || machine->numa_nodes < 2 || path->numa_node >= 0)
		return;
	say(line,
	    "the NUMA node of %s is unknown or not unique, so the pool may be far from it: "
	    "numactl --cpunodebind=N --membind=N (lstopo shows the nodes of devices)",
	    path->device);
}

/* By cost, the highest first. */
static rule_fn *const rules[] = {
	no_direct_io,
	drive_rotates,
	io_uring_disabled,
	io_uring_blocked,
	memlock_small,
	hugepages_short,
	transparent_hugepages_off,
	aio_exhausted,
	scheduler_in_the_way,
	ios_are_split,
	node_unknown,
	alignment_large,
	nearly_full,
};

#define RULES (COUNT_OF(rules))
_Static_assert(RULES <= LINES_MAX, "struct nvs_advice needs a line for each rule");

int nvs_machine_advise(const struct nvs_machine_info *machine, const struct nvs_path_info *path,
		       struct nvs_advice *advice)
{
	struct nvs_machine_info of_machine;
	struct nvs_path_info of_path;
	struct nvs_advice full;
	int rc = struct_in(&of_machine, sizeof(of_machine), machine);

	if (!rc && path)
		rc = struct_in(&of_path, sizeof(of_path), path);
	if (rc)
		return rc;
	full = (struct nvs_advice){.size = sizeof(full)};
	for (unsigned i = 0; i < RULES; i++) {
		char *line = full.line[full.count];

		rules[i](&of_machine, path ? &of_path : NULL, line);
		if (line[0])
			full.count++;
	}
	return struct_out(advice, &full, sizeof(full));
}
