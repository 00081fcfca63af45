/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and removes a member of any kind. It never writes data. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "store/member/internal.h"

int member_open(struct member *members, unsigned index, const char *path, const char *name,
		enum member_access access, struct nvs_error *error)
{
	struct stat st;

	member_start(&members[index], access != MEMBER_WRITES);
	members[index].beside = access == MEMBER_READS_BESIDE;
	if (!stat(path, &st) && S_ISBLK(st.st_mode))
		return member_open_device(members, index, path, &st, error);
	return member_open_in_directory(members, index, path, name, error);
}

int member_open_memory(struct member *member, struct nvs_error *error)
{
	member_start(member, false);
	member->kind = MEMBER_MEMORY;
	member->blank = true;
	member->capacity = UINT64_MAX;
	member->path = strdup("host memory");
	if (!member->path)
		return error_no_memory(error, "opening a store");
	member->fd = memfd_create("nvswap", MFD_CLOEXEC);
	return member->fd >= 0 ? 0 : member_cannot(error, "make a file in", member->path, -errno);
}

void member_dispose(struct member *member, const struct nvs_log *log)
{
	if (member->disposable && member->kind == MEMBER_FILE)
		member_unlink_files(member, log);
	if (member->disposable && member->kind == MEMBER_RAW)
		member_clear_device(member, log);
}

void member_close(struct member *member)
{
	assert(!member->lent || member->fd >= 0);
	if (!member->lent) {
		member_close_fd(&member->fd);
		member_close_fd(&member->direct_fd);
	}
	member_close_fd(&member->lock_fd);
	member_close_fd(&member->count_fd);
	member_close_fd(&member->directory_fd);
	/* A failed open may have created only these. */
	if (member->kind == MEMBER_FILE && (member->disposable || member->made))
		member_remove_empty(member->parent_fd, member->nvswap_fd,
				    member->directory ? strrchr(member->directory, '/') + 1 : NULL);
	member_close_fd(&member->nvswap_fd);
	member_close_fd(&member->parent_fd);
	free(member->path);
	free(member->directory);
	free(member->parent);
}
