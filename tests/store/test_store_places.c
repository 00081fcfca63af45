/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of a store: files of other programs and owners stay unchanged and are named in the
 * error; a commit detects that files of the open store have disappeared.
 */
#include <sys/socket.h>
#include <sys/un.h>

#include "store/store_fixture.h"
#include "support/inject.h"

ONE_STORE

static const struct how kept = {.keep = true};

static void make_directory(const char *name, mode_t mode)
{
	assert_int_equal(mkdir(at("%s", name), mode), 0);
	assert_int_equal(chmod(at("%s", name), mode), 0);
}

static void make_file(const char *name, const char *text, mode_t mode)
{
	write_file(at("%s", name), text, strlen(text), 0);
	assert_int_equal(chmod(at("%s", name), mode), 0);
}

/* ---- Files of other programs ---- */

TEST(a_checkout_called_nvswap_stays_as_it_is)
{
	make_directory("nvswap", 0755);
	make_directory("nvswap/src", 0755);
	make_file("nvswap/README.md", "# nvswap", 0644);
	for (int keep = 0; keep < 2; keep++) {
		must_not_open((struct how){.keep = keep}, -EMEDIUMTYPE, "and none of nvswap's");
		assert_int_equal(mode_of(at("nvswap")), S_IFDIR | 0755);
		assert_int_equal(mode_of(at("nvswap/src")), S_IFDIR | 0755);
		assert_int_equal(mode_of(at("nvswap/README.md")), S_IFREG | 0644);
		assert_int_equal(mode_of(at("nvswap/rank0")), 0);
	}
}

TEST(other_programs_files_with_the_stores_names_stay_unchanged)
{
	make_directory("nvswap", 0755);
	make_directory("nvswap/rank0", 0755);
	make_file(DATA, "numbers of some other program", 0644);
	must_not_open(kept, -EMEDIUMTYPE, "does not begin with a label");
	assert_int_equal(size_of(at(DATA)), 29);
	assert_int_equal(mode_of(at("nvswap")), S_IFDIR | 0755);
	assert_int_equal(mode_of(at("nvswap/rank0")), S_IFDIR | 0755);
	assert_int_equal(mode_of(at(DATA)), S_IFREG | 0644);

	assert_int_equal(unlink(at(DATA)), 0);
	make_file("nvswap/rank0/notes", "mine", 0644);
	must_not_open(kept, -EMEDIUMTYPE, "rank0 has an entry \"notes\"");
	assert_int_equal(mode_of(at("nvswap/rank0")), S_IFDIR | 0755);
	assert_int_equal(mode_of(at(DATA)), 0);
}

TEST(a_refused_second_path_leaves_the_first_unchanged)
{
	make_directory("a/nvswap", 0755);
	make_directory("b/nvswap", 0755);
	make_directory("b/nvswap/src", 0755);
	must_not_open((struct how){.paths = {"a", "b"}, .npaths = 2}, -EMEDIUMTYPE, "\"src\"");
	assert_int_equal(mode_of(at("b/nvswap")), S_IFDIR | 0755);
}

TEST(a_copy_with_open_modes_is_tightened)
{
	store_close(must_open(kept));
	assert_int_equal(chmod(at("nvswap"), 0755), 0);
	assert_int_equal(chmod(at("nvswap/rank0"), 0755), 0);
	assert_int_equal(chmod(at(DATA), 0644), 0);
	assert_int_equal(chmod(at("nvswap/rank0/manifest.1"), 0644), 0);
	store_close(must_open(kept));
	assert_says(log_text, "was accessible to other users (mode 0755)");
	assert_int_equal(mode_of(at("nvswap")), S_IFDIR | 0700);
	assert_int_equal(mode_of(at("nvswap/rank0")), S_IFDIR | 0700);
	assert_int_equal(mode_of(at(DATA)), S_IFREG | 0600);
	assert_int_equal(mode_of(at("nvswap/rank0/manifest.1")), S_IFREG | 0600);
}

/* In a world-writable directory such as /tmp: 0700, so openat(2) fails. */
TEST(another_users_store_is_refused_with_owner_and_remedy)
{
	int rc;

	if (geteuid() != 0) {
		print_message("only root can be another user\n");
		skip();
	}
	make_directory("nvswap", 0700);
	assert_int_equal(chmod(root, 0777), 0);
	assert_int_equal(seteuid(65534), 0);
	rc = try_open((struct how){.rank = 0}, &store);
	assert_int_equal(seteuid(0), 0);
	assert_int_equal(rc, -EMEDIUMTYPE);
	assert_non_null(strstr(error.text, "belongs to another user, root (uid 0)"));
	assert_non_null(strstr(error.text, "may hold a kept store"));
	assert_non_null(strstr(error.text, "rm -r '"));
	assert_non_null(strstr(error.text, "an nvme_path of your own"));
	assert_int_equal(mode_of(at("nvswap")), S_IFDIR | 0700);
}

TEST(a_file_system_that_creates_no_files_is_refused)
{
	must_not_open((struct how){.paths = {"/proc"}, .absolute = true}, -EOPNOTSUPP,
		      "/proc/nvswap: its file system holds no files");
	must_not_open((struct how){.paths = {"/sys"}, .absolute = true}, -EOPNOTSUPP,
		      "/sys/nvswap: its file system holds no files");
}

TEST(fifos_and_sockets_are_refused_and_not_waited_for)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	alarm(120);
	assert_int_equal(mkfifo(at("fifo"), 0600), 0);
	must_not_open((struct how){.paths = {"fifo"}}, -ENOTDIR, "neither a directory nor");
	assert_true(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", at("socket"));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(fd);
	must_not_open((struct how){.paths = {"socket"}}, -ENOTDIR, "neither a directory nor");
	alarm(0);
}

/* ---- Files that disappear while the store is open ---- */

static struct store_entry entry;

static void must_commit_one(struct how how)
{
	store = must_open(how);
	entry = reserve_entry(store, 4096);
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
}

static void must_be_stale(const char *said)
{
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), -ESTALE);
	assert_int_equal(error.code, -ESTALE);
	assert_non_null(strstr(error.text, said));
}

TEST(a_commit_to_a_store_that_was_moved_is_stale_until_it_is_back)
{
	static const char *const names[] = {"a",
					    "a/nvswap",
					    "a/nvswap/rank0",
					    "a/nvswap/rank0/data",
					    "a/nvswap/rank0/manifest.0",
					    "a/nvswap/rank0/manifest.1"};

	for (size_t i = 0; i < LENGTH(names); i++) {
		must_commit_one((struct how){.paths = {"a"}, .keep = true});
		assert_int_equal(rename(at("%s", names[i]), at("elsewhere")), 0);
		/* A commit without changes detects it, too. */
		must_be_stale("was removed or moved");
		entry.written = false;
		must_be_stale("was removed or moved");
		assert_int_equal(rename(at("elsewhere"), at("%s", names[i])), 0);
		assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
		assert_int_equal(store->manifest.generation, 2);
		shut(&store);
		remove_tree(at("a/nvswap"));
	}
}

static void copy_tree(const char *from, const char *to)
{
	char command[1100];

	snprintf(command, sizeof(command), "cp -a '%s' '%s'", from, to);
	assert_int_equal(system(command), 0);
}

/* Of any path, also one with a copy of the store in its place. */
TEST(a_commit_to_a_path_that_was_moved_is_stale_until_it_is_back)
{
	static const struct {
		struct how how;
		const char *path;
	} stores[] = {
		{{.paths = {"a"}, .keep = true}, "a"},
		{{.paths = {"a"}, .keep = true, .optimizer = true}, "a"},
		{{.paths = {"a", "b"}, .npaths = 2, .keep = true}, "a"},
		{{.paths = {"a", "b"}, .npaths = 2, .keep = true}, "b"},
	};

	for (size_t i = 0; i < 2 * LENGTH(stores); i++) {
		const char *path = at("%s", stores[i / 2].path), *moved = at("moved");
		char said[128];

		must_commit_one(stores[i / 2].how);
		snprintf(said, sizeof(said), "%s was removed or moved", path);
		assert_int_equal(rename(path, moved), 0);
		if (i % 2)
			copy_tree(moved, path);
		must_be_stale(said);
		entry.written = false;
		must_be_stale(said);
		if (i % 2)
			remove_tree(path);
		assert_int_equal(rename(moved, path), 0);
		assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
		assert_int_equal(store->manifest.generation, 2);
		shut(&store);
		remove_tree(at("a/nvswap"));
		remove_tree(at("b/nvswap"));
	}
}

/* The path of the fixture is relative. */
TEST(a_program_that_changes_its_working_directory_commits)
{
	int back = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	must_commit_one(kept);
	assert_true(back >= 0 && root[0] != '/');
	assert_int_equal(chdir("/"), 0);
	entry.written = false;
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	shut(&store);
	assert_int_equal(fchdir(back), 0);
	close(back);
	store = must_open(kept);
	assert_int_equal(store->manifest.generation, 2);
}

/* A later run opens what the link names by then. */
TEST(a_commit_to_a_link_that_names_another_directory_is_stale)
{
	assert_int_equal(symlink("a", at("link")), 0);
	must_commit_one((struct how){.paths = {"link"}, .keep = true});
	entry.written = false;
	assert_int_equal(store_commit(store, &entry, 1, NULL, &error), 0);
	assert_int_equal(unlink(at("link")), 0);
	must_be_stale("link was removed or moved");
	assert_int_equal(symlink("b", at("link")), 0);
	must_be_stale("link was removed or moved");
}

TEST(a_commit_to_a_store_that_was_removed_is_stale)
{
	struct store *other;

	must_commit_one(kept);
	remove_tree(at("nvswap"));
	must_be_stale("rank0 was removed or moved");
	/* Another store in its place is neither written to nor removed. */
	other = must_open(kept);
	must_be_stale("rank0 was removed or moved");
	shut(&store);
	store_close(other);
	store_close(must_open(kept));
}

TEST(a_store_whose_files_can_not_be_opened_is_described_or_refused)
{
	const char *path = root;
	const struct nvs_store_place place = {.size = sizeof(place), .paths = &path, .npaths = 1};
	uint64_t failed = 1, offset, nbytes = 4096;
	unsigned described = 0;

	store = must_open(kept);
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(store_commit(store, NULL, 0, NULL, &error), 0);
	shut(&store);
	for (uint64_t nth = 1; failed; nth++) {
		struct nvs_store_copy copy = {.size = sizeof(copy)};
		struct nvs_store_info info = {.size = sizeof(info)};
		struct nvs_store *looked;
		int rc;

		inject_fail(INJECT_OPEN, nth, 1, EIO);
		rc = nvs_store_open(&place, NVS_STORE_LOCK, &looked, &error);
		inject_stop(&failed);
		if (rc) {
			assert_true(failed && !looked && error.text[0]);
			continue;
		}
		assert_int_equal(nvs_store_get_info(looked, &info), 0);
		assert_int_equal(info.problem[0] == 0, info.state == NVS_STORE_KEPT);
		for (unsigned i = 0; i < info.copies; i++)
			assert_int_equal(nvs_store_get_copy(looked, i, &copy), 0);
		described += info.state == NVS_STORE_DAMAGED;
		nvs_store_close(looked);
	}
	assert_true(described);
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
