/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads /proc and /sys: small files, the drives that a block device consists of, and their NUMA
 * nodes. Relies on the layout of /sys/dev/block and /sys/block; never writes.
 */
#include "topo/sysfs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/numbers.h"

/* Device mapper over md over partitions is three levels deep; more than this is a loop. */
#define DEPTH_MAX 16

int sysfs_text(char *text, size_t nbytes, const char *path_format, ...)
{
	char path[PATH_MAX];
	ssize_t length = -1;
	va_list args;
	int fd, rc;

	assert(nbytes > 0);
	va_start(args, path_format);
	rc = vsnprintf(path, sizeof(path), path_format, args);
	va_end(args);
	assert(rc < (int)sizeof(path)); /* names of devices have up to 63 bytes */
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		length = read(fd, text, nbytes - 1);
	rc = length < 0 ? -errno : 0;
	if (fd >= 0)
		close(fd);
	while (length > 0 && isspace((unsigned char)text[length - 1]))
		length--;
	text[length < 0 ? 0 : length] = '\0';
	return rc;
}

void sysfs_choice(char *text)
{
	char *open = strchr(text, '['), *close = open ? strchr(open, ']') : NULL;

	if (!close)
		return;
	memmove(text, open + 1, (size_t)(close - open - 1));
	text[close - open - 1] = '\0';
}

struct disks {
	char (*names)[64];
	unsigned n;
};

/*
 * Adds the drives that a block device lies on: its own, or the components of device mapper or md.
 */
static void add_beneath(struct disks *disks, const char *directory, unsigned depth)
{
	char device[PATH_MAX], below[PATH_MAX + 16];
	const char *name;
	glob_t slaves;

	if (depth > DEPTH_MAX || !realpath(directory, device))
		return;
	snprintf(below, sizeof(below), "%s/partition", device);
	if (access(below, F_OK) == 0)
		*strrchr(device, '/') = '\0';
	snprintf(below, sizeof(below), "%s/slaves/*", device);
	if (!glob(below, GLOB_NOSORT, NULL, &slaves)) {
		for (size_t i = 0; i < slaves.gl_pathc; i++)
			add_beneath(disks, slaves.gl_pathv[i], depth + 1);
		globfree(&slaves);
		return;
	}
	name = strrchr(device, '/') + 1;
	for (unsigned i = 0; i < disks->n; i++)
		if (!strcmp(disks->names[i], name))
			return;
	if (disks->n < DEVICES_MAX && strlen(name) < sizeof(disks->names[0]))
		strcpy(disks->names[disks->n++], name);
}

static int compare_names(const void *a, const void *b)
{
	return strverscmp(a, b);
}

unsigned sysfs_disks(const char *root, unsigned major, unsigned minor, char names[DEVICES_MAX][64])
{
	struct disks disks = {.names = names};
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/dev/block/%u:%u", root, major, minor);
	add_beneath(&disks, path, 0);
	/* glob and readdir give no stable order. */
	qsort(names, disks.n, sizeof(names[0]), compare_names);
	return disks.n;
}

int sysfs_node(const char *root, const char *device)
{
	/* The drive's parent; the PCI device above that (virtio, SCSI); and for an NVMe drive with
	 * multipath, the PCI device of each controller. */
	static const char *const places[] = {
		"device/numa_node",
		"device/device/numa_node",
		"device/nvme*/device/numa_node",
	};
	char pattern[PATH_MAX];
	int node = -1;

	for (unsigned i = 0; i < COUNT_OF(places); i++) {
		glob_t found;

		snprintf(pattern, sizeof(pattern), "%s/block/%s/%s", root, device, places[i]);
		if (glob(pattern, GLOB_NOSORT, NULL, &found))
			continue;
		for (size_t j = 0; j < found.gl_pathc; j++) {
			uint64_t its = file_number(found.gl_pathv[j], "", UINT64_MAX);

			if (its > INT_MAX || (node >= 0 && (int)its != node)) {
				globfree(&found);
				return -1;
			}
			node = (int)its;
		}
		globfree(&found);
	}
	return node;
}
