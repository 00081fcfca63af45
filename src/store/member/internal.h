/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: errors, and the parts of opening and removing a member. */
#ifndef STORE_MEMBER_INTERNAL_H
#define STORE_MEMBER_INTERNAL_H

#include <dirent.h>

#include "store/member/member.h"

struct stat;

/* A name went away while the member was opened: start over. */
#define MEMBER_GONE (-ESTALE)

/* -EMEDIUMTYPE: `path` has something that is not nvswap's, and stays as it is. */
int member_refuse(struct nvs_error *error, const char *path, const char *why);
int member_refuse_device(struct nvs_error *error, const char *path, const char *why);
int member_cannot(struct nvs_error *error, const char *what, const char *path, int code);
/* Replaces *text. 0 or -ENOMEM. */
int __attribute__((format(printf, 3, 4)))
member_compose(char **text, struct nvs_error *error, const char *format, ...);

void member_close_fd(int *fd);
/* -EINVAL: a member before `index` is the same file or device. */
int member_named_twice(const struct member *members, unsigned index, struct nvs_error *error);

/* opendir(3) of a directory in an open one, whose position stays. */
DIR *member_list(int from_fd, const char *name);
typedef bool member_name_fn(const char *name);
bool member_is_store_name(const char *name); /* rank<N> or rank<N>-optimizer */
bool member_is_entry_name(const char *name); /* these, or the count of bytes written */
bool member_is_file_name(const char *name);  /* data, or manifest.0 to manifest.3 */
/* -EMEDIUMTYPE: the directory has entries, all with other names; MEMBER_GONE: it was removed. */
int member_check_entries(int fd, const char *path, member_name_fn *ours, struct nvs_error *error);
/* Whether the name in a directory is that of the open file: 0, -ENOENT, or why it is not known. */
int member_leads_to(int from_fd, const char *name, int fd);

/*
 * Whether a directory has nothing but the names that a file system keeps for removed, open files.
 */
bool member_counts_as_empty(int from_fd, const char *name);

/* -EMEDIUMTYPE, with the owner's name and a remedy: */
int member_other_user(const char *path, uid_t uid, struct nvs_error *error);
int member_check_owner(int fd, const char *path, struct nvs_error *error);
/* After openat(2) of `name` failed with EPERM or EACCES: whether another user owns it. */
int member_not_permitted(int from_fd, const char *name, const char *path, struct nvs_error *error);
int member_make_fd_private(int fd, const char *path, mode_t mode, const struct nvs_log *log,
			   struct nvs_error *error);

/* ---- label_io.c ---- */
/* Writes zeros over the labels and manifests of a raw device, through `fd`. */
int member_clear_places(const struct member *member, int fd, struct nvs_error *error);
int member_read_label(struct member *member, struct nvs_error *error);

/* ---- device.c ---- */
int member_open_device(struct member *members, unsigned index, const char *path,
		       const struct stat *st, struct nvs_error *error);

/* ---- open.c ---- */
/* Whether the directory has a manifest that is not empty, as member->has_manifests. */
int member_find_manifests(struct member *member, struct nvs_error *error);
/* Removes a file of nvswap's, if it is there. */
int member_unlink(const struct member *member, const char *name, struct nvs_error *error);
/*
 * Removes the directory `name` (NULL: none) and `nvswap` above it, as far as they are empty. The
 * files that were in them are closed, or FUSE and NFS keep them. False: none was removed.
 */
bool member_remove_empty(int parent_fd, int nvswap_fd, const char *name);

#endif
