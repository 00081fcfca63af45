/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine and a path can do.
 *
 *	struct nvs_machine_info machine = {.size = sizeof(machine)};
 *	struct nvs_path_info path = {.size = sizeof(path)};
 *	struct nvs_advice advice = {.size = sizeof(advice)};
 *
 *	rc = nvs_machine_get_info(&machine, &error) ||
 *	     nvs_path_get_info("/mnt/nvme", &path, &error) ||
 *	     nvs_machine_advise(&machine, &path, &advice);
 *	for (unsigned i = 0; !rc && i < advice.count; i++)
 *		printf("%s\n", advice.line[i]);
 *	printf("%s\n", nvs_ioengine_name(machine.auto_ioengine));
 */
#ifndef NVSWAP_MACHINE_H
#define NVSWAP_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/config.h"

#ifdef __cplusplus
extern "C" {
#endif

#define NVS_IOENGINE_COUNT 4 /* indexed by enum nvs_ioengine */

struct nvs_machine_info {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	char kernel[64];
	unsigned cpus, numa_nodes;
	uint64_t memory_bytes;
	uint64_t memlock_bytes; /* RLIMIT_MEMLOCK; UINT64_MAX: unlimited, or CAP_IPC_LOCK is held */
	uint64_t hugepage_bytes; /* size of the default huge page */
	uint64_t hugepages_total, hugepages_free;
	char transparent_hugepages[16]; /* always, madvise, never; "" if unknown */
	uint64_t aio_nr, aio_max_nr;
	int io_uring_disabled; /* kernel.io_uring_disabled: 0 to 2; -1 if the kernel has no such
				  setting */
	struct {
		bool works;
		char reason[192]; /* why it does not work, "" if it does; AUTO: why this engine was
				     chosen */
	} ioengine[NVS_IOENGINE_COUNT];
	enum nvs_ioengine auto_ioengine;
	uint64_t memory_free_bytes; /* that the process may still take: of the machine, and below
				       its memory limits */
	uint64_t
		memory_limit_bytes; /* of its cgroup, or of one above, that leaves least; 0: none */
	char memory_limit_file[256]; /* that has this limit; "" if there is none */
};

struct nvs_path_info {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	char path[512];
	char filesystem[32]; /* "ext4", "tmpfs"; "block device" for a raw one */
	bool block_device;
	bool direct;				  /* O_DIRECT works */
	uint32_t dio_mem_align, dio_offset_align; /* bytes; 0 if not direct */
	bool dio_from_statx; /* false: statx does not report alignments; these are the block size */
	uint64_t free_bytes, total_bytes;
	/* the underlying drive; "" and 0 if there is none (tmpfs) or it is unknown */
	char device[64]; /* "nvme0n1" */
	char model[64];
	char scheduler[32];
	bool rotational;
	uint32_t logical_block_bytes, physical_block_bytes;
	/* limits of the drive's queue; an operator may raise max_io_bytes to max_hw_io_bytes */
	uint32_t max_io_bytes, max_hw_io_bytes, nr_requests, max_segments;
	int numa_node; /* -1: the machine has one node, or the node is unknown */
	/* why reserved space may not suffice, such as a file system that copies on write; "":
	 * nothing is known against it */
	char reserve_fails[96];
};

/* Recommended changes, each with the command to make it: line[0] to line[count - 1]. */
struct nvs_advice {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	unsigned count;
	char line[16][256];
};

/*
 * Describes the machine and tries each I/O engine. A property that can't be read has the field's
 * value for "unknown".
 * Errors:
 * -EINVAL  `info` is NULL or its size is not set
 */
NVS_API int nvs_machine_get_info(struct nvs_machine_info *info, struct nvs_error *error);
/*
 * Describes a directory, file or block device.
 * Errors:
 * -EINVAL  `path` or `info` is NULL, or its size is not set
 * -ENOENT  and any other errno of opening it
 */
NVS_API int nvs_path_get_info(const char *path, struct nvs_path_info *info,
			      struct nvs_error *error);
/*
 * Lists what an operator should change, most useful first, each with the command to do so. `path`
 * may be NULL.
 * Errors:
 * -EINVAL  another argument is NULL or a size is not set
 * -E2BIG   fields of a later version are set (see libnvswap)
 */
NVS_API int nvs_machine_advise(const struct nvs_machine_info *machine,
			       const struct nvs_path_info *path, struct nvs_advice *advice);

#ifdef __cplusplus
}
#endif

#endif
