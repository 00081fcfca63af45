/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that the user names for results. No link that another user could have
 * planted is followed to them.
 */
#ifndef CLI_RESULT_FILE_H
#define CLI_RESULT_FILE_H

/*
 * Opens a file for writing and returns its descriptor; it is created if need be and not truncated.
 * Its last part must not be a symbolic link, except a descriptor of this process (/dev/stdout).
 * A link to a directory before it must belong to root or the caller, and lie where nobody else can
 * replace it. -ELOOP: a link was refused; or an errno of open.
 */
int result_open(const char *path);

/* The reason for such an error: -ELOOP in words. */
const char *result_strerror(int rc);

#endif
