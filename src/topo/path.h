/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology layer's own: the mount that an open file lies on.
 */
#ifndef TOPO_PATH_H
#define TOPO_PATH_H

#include "topo/topo.h"

struct mount {
	char type[32];	  /* "ext4" */
	char source[256]; /* "/dev/nvme0n1p1" */
};

/* Whether it could be told. */
bool mount_of(int fd, struct mount *mount);
/* Reads a line of /proc/self/mountinfo; whether it is one. */
bool mount_parse(const char *line, struct mount *mount);

#endif
