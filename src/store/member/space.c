/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct I/O and the unit of a member, and its space. Space is reserved on the drive, so a full
 * drive is detected before training and not in the middle of it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aio/aio.h"
#include "base/files.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "store/member/member.h"

/* ---- Direct I/O ---- */

static void raise_to(uint32_t *unit, uint64_t wanted)
{
	bool power = wanted && !(wanted & (wanted - 1));

	if (power && wanted <= UNIT_MAX && wanted > *unit)
		*unit = (uint32_t)wanted;
}

void unit_cover_blocks(uint32_t *unit, int fd)
{
	char names[DEVICES_MAX][64];
	unsigned n = path_devices(fd, names);

	for (unsigned i = 0; i < n && i < DEVICES_MAX; i++)
		raise_to(unit, device_attribute(names[i], "queue/physical_block_size", 0));
}

int member_probe(struct member *member, uint32_t unit, const struct nvs_log *log,
		 struct nvs_error *error)
{
	struct file_member probed = {.path = member->path, .fd = member->fd, .direct_fd = -1};
	int rc;

	member_open_check(member);
	rc = file_member_probe(&probed, !member->read_only, member->kind == MEMBER_MEMORY);
	if (rc)
		return error_set(error, rc, "cannot tell the alignment of %s: %s", member->path,
				 nvs_strerror(rc));

	uint32_t align = probed.dio.offset_align;

	/* An extent's writes must not reach into the next one. The alignment of a kept store's file
	 * may grow: xfs needs whole blocks once the file was copied by reflink, and another drive
	 * may have larger sectors. */
	if (!(probed.direct_fd < 0 || (unit ? unit % align == 0 : align <= UNIT_MAX))) {
		log_say(log, NVS_LOG_WARNING,
			"direct I/O to %s is in units of %" PRIu32 " bytes, %s %" PRIu32
			": I/O is buffered, and slower",
			member->path, align,
			unit ? "but the kept store there was made in units of"
			     : "more than nvswap's",
			unit ? unit : UNIT_MAX);
		close(probed.direct_fd);
		probed.direct_fd = -1;
		probed.dio.direct = false;
	}
	member->direct_fd = probed.direct_fd;
	member->dio = probed.dio;
	member->unit_needed = member->unit = UNIT_MIN;
	if (member->direct_fd < 0) {
		/* The page cache reads the rest of a page that is written in part. */
		raise_to(&member->unit, page_bytes());
		raise_to(&member->unit, member->dio.block_bytes);
	} else {
		raise_to(&member->unit_needed, member->dio.offset_align);
		raise_to(&member->unit, member->dio.offset_align);
		raise_to(&member->unit, member->dio.mem_align);

		unit_cover_blocks(&member->unit, member->fd);
	}
	assert(member->unit % member->unit_needed == 0);
	member_check(member);
	return 0;
}

int members_open_file(struct member *members, unsigned n, uint64_t stripe, struct nvs_aio *aio,
		      struct nvs_file **file, struct nvs_error *error)
{
	struct file_member parts[NVS_PATHS_MAX] = {{0}};
	int rc;

	assert(n && n <= NVS_PATHS_MAX);
	for (unsigned i = 0; i < n; i++)
		parts[i] = (struct file_member){.path = members[i].path,
						.fd = members[i].fd,
						.direct_fd = members[i].direct_fd,
						.base = members[i].base,
						.dio = members[i].dio};
	rc = file_create(aio, parts, n, stripe, !members[0].read_only, true, file, error);
	for (unsigned i = 0; i < n && !rc; i++)
		members[i].lent = true;
	return rc;
}

/* ---- Space ---- */

/* The free bytes of the file system, for this process or for unprivileged users; UINT64_MAX if
 * unknown. */
static uint64_t available(const struct member *member, bool for_everybody)
{
	struct memory_room room;
	struct statvfs vfs;

	if (member->kind == MEMBER_MEMORY) {
		memory_room(&room);
		return memory_room_bytes(&room);
	}
	if (fstatvfs(member->fd, &vfs) || !vfs.f_blocks)
		return UINT64_MAX;
	return (uint64_t)(for_everybody ? vfs.f_bavail : vfs.f_bfree) * vfs.f_frsize;
}

static int no_space(const struct member *member, uint64_t has, uint64_t more,
		    struct nvs_error *error)
{
	bool raw = member->kind == MEMBER_RAW;
	uint64_t nbytes = raw ? member->capacity - has : available(member, true);
	char more_text[32], has_text[32], free_text[32];

	assert(more && has <= UINT64_MAX - more);
	assert(!raw || has <= member->capacity);
	return error_cause(
		error, NVS_CAUSE_OTHER, member->path,
		error_set(
			error, -ENOSPC,
			"%s has no room for another %s: %s is free, and the store has %s already; "
			"%s another nvme_path",
			member->path, size_text(more, more_text),
			nbytes == UINT64_MAX ? "an unknown amount" : size_text(nbytes, free_text),
			size_text(has, has_text), raw ? "give" : "free some space, or give"));
}

static int cannot_reserve(const struct member *member, int code, struct nvs_error *error)
{
	return error_cause(error, NVS_CAUSE_OTHER, member->path,
			   error_set(error, code, "cannot reserve space for %s: %s", member->path,
				     nvs_strerror(code)));
}

/* posix_fallocate(3), which returns a positive errno. */
static int allocate(int fd, uint64_t offset, uint64_t nbytes)
{
	int rc;

	assert(nbytes && offset <= INT64_MAX - nbytes);
	do
		rc = posix_fallocate(fd, (off_t)offset, (off_t)nbytes);
	while (rc == EINTR);
	return -rc;
}

static int set_size(const struct member *member, int fd, uint64_t nbytes, struct nvs_error *error)
{
	int rc;

	do
		rc = ftruncate(fd, (off_t)nbytes) ? -errno : 0;
	while (rc == -EINTR);
	return rc ? error_set(error, rc, "cannot set the size of %s to %" PRIu64 " bytes: %s",
			      member->path, nbytes, nvs_strerror(rc))
		  : 0;
}

int member_begin(struct member *member, struct nvs_error *error)
{
	int rc;

	member_open_check(member);
	if (member->kind != MEMBER_FILE)
		return 0;
	rc = set_size(member, member_named_fd(member), 0, error);
	if (!rc)
		cow_turn_off(member->fd);
	rc = rc ?: file_may_grow(member->path, member->base, error);
	if (rc)
		return rc;
	rc = allocate(member->fd, 0, member->base);
	if (rc == -ENOSPC)
		return no_space(member, 0, member->base, error);
	return rc ? cannot_reserve(member, rc, error) : 0;
}

void member_report_space(const struct member *member, const struct nvs_log *log)
{
	const char *why = member->kind == MEMBER_FILE ? space_not_held(member->fd) : NULL;

	if (why)
		log_say(log, NVS_LOG_WARNING,
			"the space reserved in %s may not suffice: %s, so writing a registered "
			"tensor can fail when the file system is full",
			member->path, why);
}

int member_space(const struct member *member, uint64_t *nbytes, struct nvs_error *error)
{
	struct stat st;

	*nbytes = member->capacity;
	if (member->kind == MEMBER_RAW)
		return 0;
	if (fstat(member->fd, &st)) {
		int rc = -errno;

		return error_set(error, rc, "cannot look at %s: %s", member->path,
				 nvs_strerror(rc));
	}
	*nbytes = (uint64_t)st.st_size > member->base ? (uint64_t)st.st_size - member->base : 0;
	return 0;
}

uint64_t member_share(uint64_t end, unsigned n, uint64_t stripe)
{
	assert(end <= INT64_MAX);
	if (n == 1)
		return end;
	assert(stripe && stripe <= STRIPE_MAX);
	return (end / (stripe * n) + (end % (stripe * n) != 0)) * stripe;
}

int member_space_of(const struct member *member, uint64_t share, uint64_t *nbytes,
		    struct nvs_error *error)
{
	char have[32], need[32];
	int rc = member_space(member, nbytes, error);

	if (rc || *nbytes >= share)
		return rc;
	return error_set(error, -EUCLEAN,
			 "the data of the kept store at %s is truncated: it has %s of the %s that "
			 "its manifest names; restore it from a copy, or remove the store if it is "
			 "not needed",
			 member->path, size_text(*nbytes, have), size_text(share, need));
}

int member_grow(struct member *member, uint64_t from, uint64_t to, struct nvs_error *error)
{
	int rc;

	member_open_check(member);
	assert(from <= to && from <= member->capacity);
	if (from == to || (member->kind == MEMBER_RAW && to <= member->capacity))
		return 0;
	if (to > member->capacity || to > INT64_MAX - member->base ||
	    to - from > available(member, false))
		return no_space(member, from, to - from, error);
	rc = file_may_grow(member->path, member->base + to, error);
	if (rc)
		return rc;
	rc = allocate(member->fd, member->base + from, to - from);
	if (!rc)
		return 0;

	struct nvs_error shrinking = {.size = sizeof(shrinking)};

	/* A part may be reserved already when space runs out. */
	if (member_shrink(member, from, &shrinking))
		return error_set(error, shrinking.code, "%s", shrinking.text);
	if (rc == -ENOSPC || rc == -EFBIG || rc == -EDQUOT)
		return no_space(member, from, to - from, error);
	return cannot_reserve(member, rc, error);
}

int member_shrink(struct member *member, uint64_t to, struct nvs_error *error)
{
	assert(to <= member->capacity && to <= INT64_MAX - member->base);
	return member->kind == MEMBER_RAW ? 0
					  : set_size(member, member->fd, member->base + to, error);
}

int member_reserve_again(struct member *member, uint64_t nbytes, struct nvs_error *error)
{
	int rc;

	member_check(member);
	assert(nbytes <= member->capacity && nbytes <= INT64_MAX - member->base);
	if (member->kind != MEMBER_FILE || member->read_only)
		return 0;
	rc = file_may_grow(member->path, member->base + nbytes, error);
	if (rc)
		return rc;
	/* Not posix_fallocate(3): its emulation would read the whole store. */
	rc = file_reserve(member->fd, 0, member->base + nbytes) ? -errno : 0;
	if (rc == -ENOSPC || rc == -EDQUOT)
		return no_space(member, 0, member->base + nbytes, error);
	return rc && rc != -EOPNOTSUPP ? cannot_reserve(member, rc, error) : 0;
}
