/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners and modes of a member's directories and files. What belongs to another user is refused and
 * named; modes change only when everything is known to be nvswap's.
 */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/member/internal.h"

int member_other_user(const char *path, uid_t uid, struct nvs_error *error)
{
	struct passwd entry, *found = NULL;
	char text[1024];

	if (getpwuid_r(uid, &entry, text, sizeof(text), &found))
		found = NULL;
	return error_set(
		error, -EMEDIUMTYPE,
		"%s belongs to another user, %s (uid %" PRIu32 "): nvswap does not touch "
		"it. Give an nvme_path of your own. It may hold a kept store, which `nvswap "
		"store list` shows that user; if it is not needed, have that user or root "
		"remove it: rm -r '%s'",
		path, found ? found->pw_name : "without a name", (uint32_t)uid, path);
}

int member_check_owner(int fd, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	return st.st_uid == geteuid() ? 0 : member_other_user(path, st.st_uid, error);
}

int member_not_permitted(int from_fd, const char *name, const char *path, struct nvs_error *error)
{
	struct stat st;

	if (!fstatat(from_fd, name, &st, AT_SYMLINK_NOFOLLOW) && st.st_uid != geteuid())
		return member_other_user(path, st.st_uid, error);
	return member_cannot(error, "open", path, -EACCES);
}

int member_make_fd_private(int fd, const char *path, mode_t mode, const struct nvs_log *log,
			   struct nvs_error *error)
{
	struct stat st;

	if (fstat(fd, &st))
		return member_cannot(error, "look at", path, -errno);
	assert(st.st_uid == geteuid());
	if ((st.st_mode & 07777) == mode)
		return 0;
	if (fchmod(fd, mode))
		return member_cannot(error, "make private", path, -errno);
	if (st.st_mode & 077)
		log_say(log, NVS_LOG_WARNING,
			"%s was accessible to other users (mode %04o): its mode is now %04o", path,
			st.st_mode & 07777, mode);
	return 0;
}

int member_make_private(const struct member *member, const struct nvs_log *log,
			struct nvs_error *error)
{
	char *nvswap;
	int rc;

	if (member->kind != MEMBER_FILE || member->read_only)
		return 0;
	/* Only what was found to be nvswap's is changed. */
	nvswap = strndup(member->directory,
			 (size_t)(strrchr(member->directory, '/') - member->directory));
	if (!nvswap)
		return error_no_memory(error, "opening a store");
	rc = member_make_fd_private(member->nvswap_fd, nvswap, 0700, log, error);
	if (!rc)
		rc = member_make_fd_private(member->directory_fd, member->directory, 0700, log,
					    error);
	if (!rc)
		rc = member_make_fd_private(member_named_fd(member), member->path, 0600, log,
					    error);
	free(nvswap);
	return rc;
}
