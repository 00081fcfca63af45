/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology layer's own: what /proc and /sys say. `root` stands for /sys, so that the tests can
 * lay out machines that are not there.
 */
#ifndef TOPO_SYSFS_H
#define TOPO_SYSFS_H

#include <stddef.h>
#include <stdint.h>

#include "topo/topo.h"

#define SYSFS "/sys"

/* The text of a small file, without white space at its end. 0, or a negative errno and "". */
int sysfs_text(char *text, size_t nbytes, const char *path_format, ...)
	__attribute__((format(printf, 3, 4)));
/* The decimal number that a small file begins with; `otherwise` where there is none. */
int64_t sysfs_number(int64_t otherwise, const char *path_format, ...)
	__attribute__((format(printf, 2, 3)));
/* Takes the choice in use, "mq-deadline", out of "none [mq-deadline] kyber". */
void sysfs_choice(char *text);

/* The whole drives beneath a block device, as path_devices. */
unsigned sysfs_disks(const char *root, unsigned major, unsigned minor, char names[DEVICES_MAX][64]);
/* The NUMA node that the kernel says a drive (all its controllers) is on; -1: it does not. */
int sysfs_node(const char *root, const char *device);

#endif
