/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to the topology layer: reads /proc and /sys. `root` replaces /sys, so that tests can
 * describe other machines.
 */
#ifndef TOPO_SYSFS_H
#define TOPO_SYSFS_H

#include "topo/topo.h"

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

/* ---- path.c: the mount of an open file ---- */
struct mount {
	char type[32];	  /* "ext4" */
	char source[256]; /* "/dev/nvme0n1p1" */
};

/* Returns false if the mount is not found. */
bool mount_of(int fd, struct mount *mount);
/* Parses a line of /proc/self/mountinfo; returns false if it is malformed. */
bool mount_parse(const char *line, struct mount *mount);

#endif
