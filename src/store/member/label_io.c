/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and writes the label at the head of a member.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "store/disk.h"
#include "store/member/internal.h"

int member_read_label(struct member *member, struct nvs_error *error)
{
	uint8_t bytes[LABEL_BYTES];
	int rc = disk_read(member->fd, member->path, bytes, sizeof(bytes), 0, error);

	assert(member->fd >= 0 && member->path);
	if (rc)
		return rc;
	rc = label_decode(bytes, &member->label);
	member->blank = rc == -ENODATA;
	if (rc == 0 || rc == -ENODATA)
		return 0;
	if (rc == -EUCLEAN)
		return error_set(error, rc,
				 "the label of the store at %s is damaged: restore the store from "
				 "a copy, or remove it if it is not needed",
				 member->path);
	if (rc == -EPROTONOSUPPORT)
		return error_set(error, -EMEDIUMTYPE,
				 "the store at %s was made by another version of nvswap, in a "
				 "format unknown to this one: use that version, or, if the "
				 "store is not needed, remove %s",
				 member->path,
				 member->kind == MEMBER_RAW ? "its label (wipe the first 1 MiB)"
							    : member->directory);
	if (member->kind == MEMBER_FILE)
		return member_refuse(error, member->path,
				     "does not begin with a label of nvswap's");
	return error_set(
		error, rc,
		"%s holds something that is not nvswap's: if nothing on it is needed, wipe "
		"it first: wipefs -a %s && dd if=/dev/zero of=%s bs=1M count=1",
		member->path, member->path, member->path);
}

int member_write_label(struct member *member, struct nvs_error *error)
{
	uint8_t bytes[LABEL_BYTES];
	int rc;

	assert(member->fd >= 0);
	assert(!member->read_only);
	label_encode(&member->label, bytes);
	rc = disk_write(member->fd, member->path, bytes, sizeof(bytes), 0, error);
	if (!rc)
		rc = disk_sync(member->fd, member->path, error);
	if (!rc)
		member->blank = false;
	return rc;
}
