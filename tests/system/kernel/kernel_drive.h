/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block device of the kernel, and an ext4 on it, whose bytes can be removed and restored: reads
 * and writes of removed bytes are real I/O errors. Needs root and a loop device; the test is
 * skipped, with the reason, without them. cleanup() removes everything.
 */
#ifndef TESTS_SYSTEM_KERNEL_DRIVE_H
#define TESTS_SYSTEM_KERNEL_DRIVE_H

#include "swap/swap_fixture.h"

struct kernel_drive {
	uint64_t nbytes;
	const char *backing;   /* file with the bytes */
	const char *gone;      /* file with the removed bytes */
	const char *device;    /* loop device over `backing`: the drive */
	const char *directory; /* mount point of its ext4; NULL: not mounted */
};

void kernel_drive_make(struct kernel_drive *drive, uint64_t nbytes);
/* The same with an ext4 without a journal, mounted with these options. */
void kernel_drive_make_ext4(struct kernel_drive *drive, uint64_t nbytes, const char *options);
/* Unmounts and mounts it again; no file on it may be open. */
void kernel_drive_remount(struct kernel_drive *drive);
/* Offset on the drive of byte `offset` of a file; the next `nbytes` follow it. */
uint64_t kernel_drive_place(const struct kernel_drive *drive, const char *file, uint64_t offset,
			    uint64_t nbytes);
/*
 * Makes all writes fail with -EIO, and all reads from byte `from` on (a multiple of 4096, not 0).
 */
void kernel_drive_cut(struct kernel_drive *drive, uint64_t from);
/*
 * End the errors; kernel_drive_mend() restores the removed bytes, kernel_drive_mend_blank() leaves
 * zeros.
 */
void kernel_drive_mend(struct kernel_drive *drive);
void kernel_drive_mend_blank(struct kernel_drive *drive);
/* Sets the device's size to that of its file, after kernel_drive_cut() or a mend. */
void kernel_drive_resize(struct kernel_drive *drive);

/* Whether the engine works here; otherwise prints the reason. */
bool engine_works(enum nvs_ioengine ioengine);

#endif
