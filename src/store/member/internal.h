/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this folder share: errors, and the parts of opening and removing a member.
 */
#ifndef STORE_MEMBER_INTERNAL_H
#define STORE_MEMBER_INTERNAL_H

#include "store/member/member.h"

struct stat;

/* -EMEDIUMTYPE: `path` has something that is not nvswap's, and stays as it is. */
int member_refuse(struct nvs_error *error, const char *path, const char *why);
int member_cannot(struct nvs_error *error, const char *what, const char *path, int code);
/* Replaces *text. 0 or -ENOMEM. */
int __attribute__((format(printf, 3, 4)))
member_compose(char **text, struct nvs_error *error, const char *format, ...);
void member_close_fd(int *fd);

/* -EINVAL: a member before `index` is the same file or device. */
int member_named_twice(const struct member *members, unsigned index, struct nvs_error *error);
int member_read_label(struct member *member, struct nvs_error *error);

int member_open_in_directory(struct member *members, unsigned index, const char *path,
			     const char *name, const struct nvs_log *log, struct nvs_error *error);
int member_open_device(struct member *members, unsigned index, const char *path,
		       const struct stat *st, struct nvs_error *error);

void member_unlink_files(struct member *member, const struct nvs_log *log);
/* Directories that are not empty stay. */
void member_remove_directories(const struct member *member);
/* Writes zeros over the label. */
void member_clear_device(struct member *member, const struct nvs_log *log);

#endif
