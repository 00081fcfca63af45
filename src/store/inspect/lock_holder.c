/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which process holds a store's lock, from /proc/locks. The kernel hides processes of other
 * namespaces, and some file systems have other device numbers there: then it is unknown.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "store/inspect/internal.h"

static void read_name(int pid, char name[64])
{
	char path[64];
	FILE *file;

	assert(pid > 0);
	assert(!name[0]);
	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(name, 64, file))
		name[strcspn(name, "\n")] = 0;
	fclose(file);
}

/* A line such as "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF". */
static int pid_in(const char *line, const struct stat *st)
{
	unsigned major_number, minor_number;
	uint64_t inode;
	int pid;

	if (sscanf(line, "%*d: FLOCK %*s %*s %d %x:%x:%" SCNu64, &pid, &major_number, &minor_number,
		   &inode) != 4)
		return 0;
	return inode == st->st_ino && makedev(major_number, minor_number) == st->st_dev && pid > 0
		       ? pid
		       : 0;
}

int owner_of(int fd, char name[64])
{
	char line[256];
	struct stat st;
	FILE *file;
	int pid = 0;

	assert(fd >= 0);
	name[0] = 0;
	if (fstat(fd, &st))
		return 0;
	file = fopen("/proc/locks", "re");
	if (!file)
		return 0;
	while (!pid && fgets(line, sizeof(line), file))
		pid = pid_in(line, &st);
	fclose(file);
	assert(pid >= 0);
	if (pid)
		read_name(pid, name);
	return pid;
}
