/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the user names for results: reports and pages. No link that another user could have
 * planted is followed to them.
 */
#ifndef CLI_RESULT_FILE_H
#define CLI_RESULT_FILE_H

#include <stddef.h>

/*
 * Opens a file for writing and returns its descriptor; it is created if need be and not truncated.
 * Its last part must not be a symbolic link, except a descriptor of this process (/dev/stdout).
 * A link to a directory before it must belong to root or the caller, and lie where nobody else can
 * replace it. `flags` is 0 or O_NONBLOCK. -ELOOP: a link was refused; or an errno of open.
 */
int result_open(const char *path, int flags);

/*
 * Replaces a file by `text` as a whole: a crash leaves the old file or the new. A pipe or a device
 * is written to. The errors are those of result_open, writing and renaming.
 */
int result_replace(const char *path, const char *text, size_t nbytes);

/* The reason for an error of both: -ELOOP in words. */
const char *result_strerror(int rc);

#endif
