/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block device of the kernel's, and an ext4 on it, whose bytes can be taken away from beneath and
 * given back: reads and writes of what is gone are real I/O errors. It takes root; where there is
 * none, or no loop device, the test is skipped and says why. All of it goes with cleanup().
 */
#ifndef TESTS_SYSTEM_KERNEL_DRIVE_H
#define TESTS_SYSTEM_KERNEL_DRIVE_H

#include "support/support.h"
#include "swap/swap_fixture.h"

struct kernel_drive {
	uint64_t nbytes;
	const char *backing;   /* the file that holds the bytes, */
	const char *gone;      /* and one for those that were taken from it */
	const char *device;    /* over it: the drive */
	const char *directory; /* where an ext4 on that is mounted; NULL: none is */
};

void kernel_drive_make(struct kernel_drive *drive, uint64_t nbytes);
/* The same with an ext4 that has no journal, mounted with these options. */
void kernel_drive_make_ext4(struct kernel_drive *drive, uint64_t nbytes, const char *options);
/* It is unmounted, for which nothing on it may be open, and mounted again. */
void kernel_drive_remount(struct kernel_drive *drive);
/* Where byte `offset` of a file lies on the drive, and the next `nbytes` with it. */
uint64_t kernel_drive_place(const struct kernel_drive *drive, const char *file, uint64_t offset,
			    uint64_t nbytes);
/* All writes are -EIO, and reads from that byte on (a multiple of 4096, not 0). */
void kernel_drive_cut(struct kernel_drive *drive, uint64_t from);
/* They work again, and what was there is there again, or only zeros. */
void kernel_drive_mend(struct kernel_drive *drive);
void kernel_drive_mend_blank(struct kernel_drive *drive);
/* The device becomes as long as there are bytes for it, after one of the above. */
void kernel_drive_resize(struct kernel_drive *drive);

/* Those that work here, of io_uring, libaio and posix; returns how many. */
size_t kernel_engines(enum nvs_ioengine engines[3]);

#endif
