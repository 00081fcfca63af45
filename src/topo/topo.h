/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is near what: the NUMA node and the cores of the drive beneath a path, by hwloc; and binding
 * memory and threads there. Binding is an optimisation: where it can't be had nothing fails.
 */
#ifndef TOPO_TOPO_H
#define TOPO_TOPO_H

#include "nvswap.h"

struct topo;

/* The machine's topology, or that of an hwloc XML file (for tests; nothing can be bound then). */
int topo_open(struct topo **topo, const char *xml_path, struct nvs_error *error);
void topo_close(struct topo *topo);

/*
 * The NUMA node (its OS index) that all of the block devices (names as in /sys/block: "nvme0n1")
 * are local to; -1 where it can't be told, they differ, or the machine has but one node.
 */
int topo_node_of_devices(const struct topo *topo, const char *const *devices, unsigned n);
/* CPUs (OS indices) of the node, ascending, into cpus[0..max-1]; returns how many it has. */
unsigned topo_cpus_of_node(const struct topo *topo, int node, unsigned *cpus, unsigned max);

/* Binds memory to the node before it is first touched. 0, or a negative errno. */
int topo_bind_memory(const struct topo *topo, int node, void *data, size_t nbytes);
/* Binds the calling thread to the cores of the node. 0, or a negative errno. */
int topo_bind_thread(const struct topo *topo, int node);

/*
 * Cores (not hardware threads) of the node, or of the whole machine where node is -1, that the
 * process may run on: at least one of their hardware threads is in the cpuset that it was given.
 * 0 where there is none or no such node.
 */
unsigned topo_cores(const struct topo *topo, int node);
/* Binds the calling thread to core `core` of them, from 0, as far as the process may run on it. 0,
 * or a negative errno: -EINVAL where there are fewer. */
int topo_bind_thread_to_core(const struct topo *topo, int node, unsigned core);

/* ---- What a path can do ---- */

struct dio_caps {
	bool direct;	    /* O_DIRECT works on it */
	bool from_statx;    /* the kernel told the alignments */
	uint32_t mem_align; /* bytes; powers of two; 0 where not direct */
	uint32_t offset_align;
};

/*
 * Whether the open file or block device can do direct I/O, and with which alignment: by
 * statx(STATX_DIOALIGN), else, where the kernel does not tell, by trying O_DIRECT on a second
 * descriptor of it and taking statx's block size. 0, or the errno of looking: too many open files
 * do not make one that is not direct.
 */
int dio_probe(int fd, struct dio_caps *caps);
/* Another descriptor of the same file, with these flags and O_DIRECT, or a negative errno. */
int dio_open(int fd, int flags);

#define DEVICES_MAX 16
/*
 * The whole drives beneath the file system or block device that `fd` lies on: through partitions,
 * device mapper and md to the disks. Names go to names[]; returns how many, 0 where there is none.
 */
unsigned path_devices(int fd, char names[DEVICES_MAX][64]);
/* A number from /sys/block/<device>/<attribute>; `otherwise` where it can't be read. */
uint64_t device_attribute(const char *device, const char *attribute, uint64_t otherwise);

/* RLIMIT_MEMLOCK in bytes; UINT64_MAX where there is none or the process may ignore it
 * (CAP_IPC_LOCK). */
uint64_t memlock_limit(void);
/* Bytes that the machine and the container's limit have left; more would call the OOM killer. */
uint64_t memory_available(void);

/* Everything in *info but the I/O engines, which only the layer that has them can try. */
void machine_facts(struct nvs_machine_info *info);

#endif
