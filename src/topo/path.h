/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal to the topology layer: the mount of an open file.
 */
#ifndef TOPO_PATH_H
#define TOPO_PATH_H

#include "topo/topo.h"

struct mount {
	char type[32];	  /* "ext4" */
	char source[256]; /* "/dev/nvme0n1p1" */
};

/* Returns false if the mount is not found. */
bool mount_of(int fd, struct mount *mount);
/* Parses a line of /proc/self/mountinfo; returns false if it is malformed. */
bool mount_parse(const char *line, struct mount *mount);

#endif
