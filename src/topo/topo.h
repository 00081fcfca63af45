/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology layer: the NUMA node and cores of the drive below a path, by hwloc, binding memory
 * and threads to them, and facts about paths and the machine. Binding is an optimisation, so its
 * callers continue when it fails.
 */
#ifndef TOPO_TOPO_H
#define TOPO_TOPO_H

#include "nvswap.h"

struct topo;

/* Loads the machine's topology or, for tests, an hwloc XML file, to which nothing can be bound. */
int topo_open(struct topo **topo, const char *xml_path, struct nvs_error *error);
void topo_close(struct topo *topo);

/*
 * The OS index of the NUMA node that all of the block devices (names as in /sys/block: "nvme0n1")
 * are local to; -1 if it is unknown, they differ, or the machine has only one node.
 */
int topo_node_of_devices(const struct topo *topo, const char *const *devices, unsigned n);
/* The node of the drives below n paths, which are directories, files or block devices; -1 also if
 * one can't be opened. */
int topo_node_of_paths(const struct topo *topo, const char *const *paths, unsigned n);

/* Binds memory to the node; call it before the first touch. Returns 0 or a negative errno. */
int topo_bind_memory(const struct topo *topo, int node, void *data, size_t nbytes);
/* Binds the calling thread to the cores of the node. Returns 0 or a negative errno. */
int topo_bind_thread(const struct topo *topo, int node);

/*
 * Number of cores of the node, or of the machine if node is -1, that the process may run on: at
 * least one of their hardware threads is in its cpuset. 0 if there is no such core or node.
 */
unsigned topo_cores(const struct topo *topo, int node);
/* Binds the calling thread to the `core`-th of these, from 0. Returns 0 or a negative errno,
 * -EINVAL if there are fewer. */
int topo_bind_thread_to_core(const struct topo *topo, int node, unsigned core);

/* ---- What a path can do ---- */

struct dio_caps {
	bool direct;	    /* O_DIRECT works on it */
	bool from_statx;    /* the alignments are from statx, not guessed */
	uint32_t mem_align; /* bytes, a power of two; 0 if not direct */
	uint32_t offset_align;
	uint32_t block_bytes; /* the file system's or device's preferred I/O size; also if not
				 direct */
};

/*
 * Whether the open file or block device can do direct I/O, and with which alignment: from
 * statx(STATX_DIOALIGN), or else from statx's block size. Either way O_DIRECT is tried on a second
 * descriptor. Returns 0, or the negative errno of a probe that failed for another reason, such as
 * -EMFILE.
 */
int dio_probe(int fd, struct dio_caps *caps);
/* Opens the same file again with these flags and O_DIRECT. Returns it or a negative errno. */
int dio_open(int fd, int flags);
/* The magic number of its file system, of linux/magic.h; 0: unknown. */
uint32_t magic_of(int fd);

/* The error of a path that does not exist, -ENOENT: what it may stand for, or what of it exists. */
int path_missing(const char *path, struct nvs_error *error);

#define DEVICES_MAX 16
/*
 * Stores the names of the whole drives below the file system or block device of `fd`, through
 * partitions, device mapper and md. Returns their number, 0 if there is none.
 */
unsigned path_devices(int fd, char names[DEVICES_MAX][64]);
/* The number in /sys/block/<device>/<attribute>; `otherwise` if it can't be read. */
uint64_t device_attribute(const char *device, const char *attribute, uint64_t otherwise);

/* RLIMIT_MEMLOCK in bytes; UINT64_MAX if unlimited or the process has CAP_IPC_LOCK. */
uint64_t memlock_limit(void);

/* Fills in *info except for the I/O engines, which the aio layer tries. */
void machine_facts(struct nvs_machine_info *info);

/*
 * Why space that is reserved for the open file may not suffice to write it; NULL: it does, or
 * nothing is known against it.
 */
const char *space_not_held(int fd);
/* The same of a file's properties: magic number of its file system, FS_NOCOW_FL, shared extents. */
const char *cow_reason(uint32_t magic, bool no_cow, bool shared);
/* On btrfs, lets the file, which must be empty, be overwritten in place. */
void cow_turn_off(int fd);

/* ---- Within the layer; `root` replaces /sys, so that tests can describe other machines ---- */

#define SYSFS "/sys"

/* Reads a small file without trailing white space. On error, returns a negative errno and "". */
int sysfs_text(char *text, size_t nbytes, const char *path_format, ...)
	__attribute__((format(printf, 3, 4)));
/* Reduces "none [mq-deadline] kyber" to the current choice, "mq-deadline". */
void sysfs_choice(char *text);

/* The whole drives below a block device, as in path_devices. */
unsigned sysfs_disks(const char *root, unsigned major, unsigned minor, char names[DEVICES_MAX][64]);
/* The NUMA node of a drive (of all its controllers) in sysfs; -1: unknown, or they differ. */
int sysfs_node(const char *root, const char *device);

/* The mount of an open file. */
struct mount {
	char type[32];	  /* "ext4" */
	char source[256]; /* "/dev/nvme0n1p1" */
};

/* Returns false if the mount is not found. */
bool mount_of(int fd, struct mount *mount);
/* Parses a line of /proc/self/mountinfo; returns false if it is malformed. */
bool mount_parse(const char *line, struct mount *mount);

#endif
