/* SPDX-License-Identifier: Apache-2.0 */
/* On which file systems, and for which files, reserved space may not suffice. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <linux/magic.h>

#include "support/tests.h"
#include "topo/topo.h"

static void is_named(uint32_t magic, bool no_cow, bool shared, const char *word)
{
	const char *why = cow_reason(magic, no_cow, shared);

	if (word)
		assert_true(why && strstr(why, word));
	else
		assert_null(why);
}

TEST(file_systems_that_copy_on_write_are_named)
{
	is_named(BTRFS_SUPER_MAGIC, false, false, "btrfs");
	is_named(BTRFS_SUPER_MAGIC, true, false, NULL);
	is_named(BTRFS_SUPER_MAGIC, true, true, "snapshot");
	is_named(XFS_SUPER_MAGIC, false, false, NULL);
	is_named(XFS_SUPER_MAGIC, false, true, "shares blocks");
	is_named(EXT4_SUPER_MAGIC, false, false, NULL);
	is_named(0x2fc12fc1, false, false, "ZFS");
	is_named(0xca451a4e, true, false, "bcachefs");
	is_named(NILFS_SUPER_MAGIC, false, false, "NILFS");
	is_named(0, false, false, NULL);
}

TEST(what_is_no_file_holds_its_space)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_null(space_not_held(fd));
	cow_turn_off(fd);
	close(fd);
	assert_null(space_not_held(-1));
}
