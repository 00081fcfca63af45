/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens, removes and closes a member of any kind. It never writes data.
 */
#include "store/member/member.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "store/member/internal.h"

void member_close_fd(int *fd)
{
	assert(fd);
	assert(*fd >= -1);
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int member_named_twice(const struct member *members, unsigned index, struct nvs_error *error)
{
	const struct member *member = &members[index];

	assert(index < NVS_PATHS_MAX);
	assert(member->path && member->kind != MEMBER_MEMORY);
	for (unsigned i = 0; i < index; i++)
		if (members[i].kind == member->kind && members[i].dev == member->dev &&
		    members[i].ino == member->ino)
			return error_set(
				error, -EINVAL,
				"%s and %s are the same: nvme_path must name every drive once",
				members[i].path, member->path);
	return 0;
}

static void start(struct member *member, bool read_only)
{
	/* Nothing of another member is lost. */
	assert(!member->path && !member->directory && !member->parent);
	*member = (struct member){.parent_fd = -1,
				  .nvswap_fd = -1,
				  .directory_fd = -1,
				  .fd = -1,
				  .direct_fd = -1,
				  .lock_fd = -1,
				  .read_only = read_only};
}

static int open_started(struct member *members, unsigned index, const char *path, const char *name,
			struct nvs_error *error)
{
	struct stat st;

	assert(path && member_is_store_name(name));
	if (!stat(path, &st) && S_ISBLK(st.st_mode))
		return member_open_device(members, index, path, &st, error);
	return member_open_in_directory(members, index, path, name, error);
}

int member_open(struct member *members, unsigned index, const char *path, const char *name,
		bool read_only, struct nvs_error *error)
{
	assert(index < NVS_PATHS_MAX);
	start(&members[index], read_only);
	return open_started(members, index, path, name, error);
}

int member_open_beside(struct member *members, unsigned index, const char *path, const char *name,
		       struct nvs_error *error)
{
	assert(index < NVS_PATHS_MAX);
	start(&members[index], true);
	members[index].beside = true;
	return open_started(members, index, path, name, error);
}

int member_open_memory(struct member *member, struct nvs_error *error)
{
	start(member, false);
	member->kind = MEMBER_MEMORY;
	member->blank = true;
	member->capacity = UINT64_MAX;
	member->path = strdup("host memory");
	if (!member->path)
		return error_set(error, -ENOMEM, "out of memory while opening a store");
	member->fd = memfd_create("nvswap", MFD_CLOEXEC);
	return member->fd >= 0 ? 0 : member_cannot(error, "make a file in", member->path, -errno);
}

void member_dispose(struct member *member, const struct nvs_log *log)
{
	assert(!member->read_only || (!member->disposable && !member->made));
	if (member->disposable && member->kind == MEMBER_FILE)
		member_unlink_files(member, log);
	if (member->disposable && member->kind == MEMBER_RAW)
		member_clear_device(member, log);
	/* A failed open may have created only these. */
	if (member->kind == MEMBER_FILE && (member->disposable || member->made))
		member_remove_directories(member);
}

void member_close(struct member *member)
{
	assert(!member->lent || member->fd >= 0);
	if (!member->lent) {
		member_close_fd(&member->fd);
		member_close_fd(&member->direct_fd);
	}
	member_close_fd(&member->lock_fd);
	member_close_fd(&member->directory_fd);
	member_close_fd(&member->nvswap_fd);
	member_close_fd(&member->parent_fd);
	free(member->path);
	free(member->directory);
	free(member->parent);
}

/* ---- Checking ---- */

void member_open_check(const struct member *member)
{
	assert(member->path && member->fd >= 0);
	assert(!member->read_only || (!member->disposable && !member->made));
	assert(member->read_only || (!member->beside && !member->in_use));
	assert(member->lock_fd < 0 || (member->kind == MEMBER_FILE && !member->read_only));
	switch (member->kind) {
	case MEMBER_FILE:
		assert(member->base == LABEL_AREA_BYTES && member->capacity == UINT64_MAX);
		assert(member->directory && strrchr(member->directory, '/'));
		assert(member->directory_fd >= 0);
		assert(member->parent_fd >= 0 && member->nvswap_fd >= 0);
		assert(member->parent && member->parent[0] == '/');
		break;
	case MEMBER_RAW:
		assert(member->base == LABEL_AREA_BYTES ||
		       member->base == LABEL_AREA_BYTES + MANIFEST_SLOT_COUNT * RAW_MANIFEST_BYTES);
		assert(member->capacity >= UNIT_MAX && member->capacity <= INT64_MAX);
		assert(!member->directory && member->directory_fd < 0);
		assert(!member->has_manifests && !member->made);
		break;
	case MEMBER_MEMORY:
		assert(!member->base && member->capacity == UINT64_MAX);
		assert(!member->directory && member->direct_fd < 0);
		assert(!member->read_only && !member->has_manifests);
		break;
	default:
		assert(false);
	}
}

void member_check(const struct member *member)
{
	member_open_check(member);
	assert(member->dio.direct == (member->direct_fd >= 0));
	assert(member->unit >= UNIT_MIN && member->unit <= UNIT_MAX);
	assert(member->unit_needed && member->unit % member->unit_needed == 0);
	assert(!member->dio.direct || member->unit_needed % member->dio.offset_align == 0);
	if (!member->blank)
		label_check(&member->label);
}
