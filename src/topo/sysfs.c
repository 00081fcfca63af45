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

#include "base/numbers.h"

/* Device mapper over md over partitions is three levels deep; more than this is a loop. */
#define DEPTH_MAX 16

static int read_text(const char *path, char *text, size_t nbytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;
	ssize_t length;

	if (fd < 0)
		return -errno;
	length = read(fd, text, nbytes - 1);
	if (length < 0) {
		rc = -errno;
		length = 0;
	}
	close(fd);
	while (length > 0 && isspace((unsigned char)text[length - 1]))
		length--;
	text[length] = '\0';
	return rc;
}

int sysfs_text(char *text, size_t nbytes, const char *path_format, ...)
{
	char path[PATH_MAX];
	va_list args;
	int length;

	assert(nbytes > 0);
	text[0] = '\0';
	va_start(args, path_format);
	length = vsnprintf(path, sizeof(path), path_format, args);
	va_end(args);
	return length < (int)sizeof(path) ? read_text(path, text, nbytes) : -ENAMETOOLONG;
}

int64_t sysfs_number(int64_t otherwise, const char *path_format, ...)
{
	char path[PATH_MAX], text[64], *end;
	long long value;
	va_list args;
	int length;

	va_start(args, path_format);
	length = vsnprintf(path, sizeof(path), path_format, args);
	va_end(args);
	if (length >= (int)sizeof(path) || read_text(path, text, sizeof(text)))
		return otherwise;
	errno = 0;
	value = strtoll(text, &end, 10);
	return end == text || errno ? otherwise : value;
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
			int64_t its = sysfs_number(-1, "%s", found.gl_pathv[j]);

			if (its < 0 || its > INT_MAX || (node >= 0 && its != node)) {
				globfree(&found);
				return -1;
			}
			node = (int)its;
		}
		globfree(&found);
	}
	return node;
}
