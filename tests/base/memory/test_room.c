/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory a process may still take, read from made-up /proc and cgroups of both versions.
 */
#include "base/memory/room.h"
#include "support/support.h"

#define MIB (UINT64_C(1) << 20)

#define V1_MOUNT "/sys/fs/cgroup/memory"
#define V1_LINE(root)                                                                              \
	"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"                                        \
	"34 31 0:31 " root " /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup "              \
	"rw,cpu,cpuacct\n"                                                                         \
	"35 31 0:32 " root " " V1_MOUNT " rw shared:10 master:2 - cgroup cgroup rw,memory\n"
#define V2_LINE(root) "30 23 0:26 " root " /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"

/* ---- A made-up machine ---- */

static const char *root;

static void write_number(const char *directory, const char *name, uint64_t number)
{
	char path[512], text[32];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	snprintf(text, sizeof(text), "%llu\n", (unsigned long long)number);
	write_below(root, path, text);
}

static void write_stat(const char *directory, const char *prefix, uint64_t inactive,
		       uint64_t active)
{
	char path[512], text[256];

	snprintf(path, sizeof(path), "%s/memory.stat", directory);
	snprintf(text, sizeof(text),
		 "rss 4096\n%sinactive_anon 4096\n%sinactive_file %llu\n%sactive_file %llu\n",
		 prefix, prefix, (unsigned long long)inactive, prefix, (unsigned long long)active);
	write_below(root, path, text);
}

static void v1_cgroup(const char *path, uint64_t limit, uint64_t usage, uint64_t cache)
{
	char directory[512];

	snprintf(directory, sizeof(directory), V1_MOUNT "%s", path);
	write_number(directory, "memory.limit_in_bytes", limit);
	write_number(directory, "memory.usage_in_bytes", usage);
	write_stat(directory, "total_", cache, 0);
}

/* Without limit: "max". */
static void v2_cgroup(const char *path, uint64_t limit, uint64_t usage, uint64_t cache)
{
	char directory[512], file[600];

	snprintf(directory, sizeof(directory), "/sys/fs/cgroup%s", path);
	snprintf(file, sizeof(file), "%s/memory.max", directory);
	if (limit)
		write_number(directory, "memory.max", limit);
	else
		write_below(root, file, "max\n");
	write_number(directory, "memory.current", usage);
	write_stat(directory, "", cache / 2, cache - cache / 2);
}

static void machine(uint64_t available, const char *mounts, const char *cgroups)
{
	char text[128];

	root = temp_directory();
	snprintf(text, sizeof(text), "MemTotal: 99999999 kB\nMemAvailable: %llu kB\n",
		 (unsigned long long)(available / 1024));
	write_below(root, "/proc/meminfo", text);
	write_below(root, "/proc/self/mountinfo", mounts);
	write_below(root, "/proc/self/cgroup", cgroups);
}

static struct memory_room room;

/* What is left here. */
static uint64_t left(void)
{
	memory_room_below(root, &room);
	return room.left;
}

static void has_limit(uint64_t due, uint64_t limit, const char *file)
{
	assert_int_equal(left(), due);
	assert_int_equal(room.limit, limit);
	assert_string_equal(room.file + strlen(root), file);
}

/* ---- The tests ---- */

TEST(without_a_limit_the_machine_decides)
{
	machine(500 * MIB, V1_LINE("/"), "4:memory:/user\n1:cpu:/\n0::/\n");
	/* What v1 says of a cgroup without a limit. */
	v1_cgroup("/user", 9223372036854771712u, 900 * MIB, 0);
	assert_int_equal(left(), UINT64_MAX);
	assert_string_equal(room.file, "");
	assert_int_equal(memory_room_bytes(&room), 500 * MIB);
	machine(300 * MIB, V2_LINE("/"), "0::/user\n");
	v2_cgroup("/user", 0, 900 * MIB, 0);
	assert_int_equal(left(), UINT64_MAX);
	assert_int_equal(memory_room_bytes(&room), 300 * MIB);
}

TEST(the_process_s_own_cgroup_limits_it)
{
	machine(5000 * MIB, V1_LINE("/"),
		"9:name=systemd:/s\n4:hugetlb,memory:/slurm/job_7\n0::/\n");
	v1_cgroup("", 9223372036854771712u, 9000 * MIB, 0);
	v1_cgroup("/slurm", 9223372036854771712u, 9000 * MIB, 0);
	v1_cgroup("/slurm/job_7", 400 * MIB, 100 * MIB, 0);
	has_limit(300 * MIB, 400 * MIB, V1_MOUNT "/slurm/job_7/memory.limit_in_bytes");
	machine(5000 * MIB, V2_LINE("/"), "0::/system.slice/run-u7.scope\n");
	v2_cgroup("/system.slice/run-u7.scope", 400 * MIB, 100 * MIB, 0);
	v2_cgroup("/system.slice", 0, 300 * MIB, 0);
	has_limit(300 * MIB, 400 * MIB, "/sys/fs/cgroup/system.slice/run-u7.scope/memory.max");
	assert_int_equal(memory_room_bytes(&room), 300 * MIB);
}

TEST(of_all_cgroups_above_the_one_that_leaves_least_counts)
{
	machine(5000 * MIB, V1_LINE("/"), "4:memory:/slurm/job_7/step_0\n");
	v1_cgroup("/slurm/job_7/step_0", 400 * MIB, 50 * MIB, 0);
	v1_cgroup("/slurm/job_7", 1000 * MIB, 900 * MIB, 0);
	v1_cgroup("/slurm", 4000 * MIB, 1000 * MIB, 0);
	v1_cgroup("", 9223372036854771712u, 9000 * MIB, 0);
	has_limit(100 * MIB, 1000 * MIB, V1_MOUNT "/slurm/job_7/memory.limit_in_bytes");
	machine(5000 * MIB, V2_LINE("/"), "0::/a/b\n");
	v2_cgroup("/a/b", 0, 50 * MIB, 0);
	v2_cgroup("/a", 80 * MIB, 90 * MIB, 0);
	has_limit(0, 80 * MIB, "/sys/fs/cgroup/a/memory.max");
}

TEST(a_container_s_limit_is_at_the_root_of_its_mount)
{
	static const struct {
		const char *mounts, *cgroups;
	} v1[] = {
		/* the host's names; a namespace; a mount from before the namespace */
		{V1_LINE("/docker/7c"), "4:memory:/docker/7c\n"},
		{V1_LINE("/"), "4:memory:/\n"},
		{V1_LINE("/.."), "4:memory:/\n"},
		{V1_LINE("/docker/7c"), "4:memory:/elsewhere\n"},
	};
	for (size_t i = 0; i < COUNT(v1); i++) {
		machine(5000 * MIB, v1[i].mounts, v1[i].cgroups);
		v1_cgroup("", 400 * MIB, 100 * MIB, 0);
		has_limit(300 * MIB, 400 * MIB, V1_MOUNT "/memory.limit_in_bytes");
	}
	machine(5000 * MIB, V2_LINE("/machine/p9"), "0::/machine/p9/init\n");
	v2_cgroup("", 400 * MIB, 100 * MIB, 0);
	v2_cgroup("/init", 0, 100 * MIB, 0);
	has_limit(300 * MIB, 400 * MIB, "/sys/fs/cgroup/memory.max");
}

TEST(the_page_cache_can_be_dropped_and_does_not_count)
{
	machine(5000 * MIB, V1_LINE("/"), "4:memory:/a\n");
	v1_cgroup("/a", 400 * MIB, 399 * MIB, 300 * MIB);
	assert_int_equal(left(), 301 * MIB);
	machine(5000 * MIB, V2_LINE("/"), "0::/a\n");
	v2_cgroup("/a", 400 * MIB, 399 * MIB, 300 * MIB);
	assert_int_equal(left(), 301 * MIB);
	/* Read a moment later, the cache may be more than the usage. */
	v2_cgroup("/a", 400 * MIB, 10 * MIB, 300 * MIB);
	assert_int_equal(left(), 400 * MIB);
}

TEST(names_with_spaces_and_a_hybrid_of_both_versions_are_read)
{
	machine(5000 * MIB,
		"35 31 0:32 /a\\040b /my\\040cgroups rw - cgroup cgroup rw,memory\n"
		"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		"4:memory:/a b/c\n0::/x\n");
	write_number("/my cgroups/c", "memory.limit_in_bytes", 70 * MIB);
	write_number("/my cgroups/c", "memory.usage_in_bytes", 30 * MIB);
	has_limit(40 * MIB, 70 * MIB, "/my cgroups/c/memory.limit_in_bytes");
}

TEST(what_cannot_be_read_limits_nothing)
{
	static const char *const odd[] = {
		"",	      "\n",	     ":\n",	      "0:\n",	       "0::\n",
		"x:memory\n", "4:memory:\n", "0::/../../b\n", "4:memory:/..\n"};
	static const char *const mounts[] = {"",
					     "\n",
					     " - \n",
					     "35 - cgroup2 x rw\n",
					     "1 2 3:4 / - cgroup cgroup rw,memory\n",
					     "1 2 3:4 / /nowhere rw - cgroup cgroup rw,memory\n"};
	for (size_t i = 0; i < COUNT(odd); i++)
		for (size_t j = 0; j < COUNT(mounts); j++) {
			machine(5 * MIB, mounts[j], odd[i]);
			assert_int_equal(left(), UINT64_MAX);
			assert_int_equal(memory_room_bytes(&room), 5 * MIB);
		}
	root = temp_directory();
	left();
	assert_int_equal(memory_room_bytes(&room), UINT64_MAX);
}

static int judge(uint64_t nbytes, struct nvs_error *error)
{
	return memory_room_judge(&room, nbytes, "buffer_size", "the pool", "allocate less", error);
}

TEST(the_error_names_the_limit_its_file_and_what_to_do)
{
	struct nvs_error error = {.size = sizeof(error)};

	room = (struct memory_room){.machine = 900 * MIB,
				    .left = 300 * MIB,
				    .limit = 400 * MIB,
				    .file = "/cgroup/memory.max"};
	assert_int_equal(judge(1024 * MIB, &error), -ENOMEM);
	assert_string_equal(error.subject, "buffer_size");
	assert_says(error.text, "the pool needs 1 GiB (1073741824 bytes)");
	assert_says(error.text, "limit of 400 MiB (/cgroup/memory.max) leaves 300 MiB");
	assert_says(error.text, "--mem of Slurm, MemoryMax= of the systemd unit");
	assert_says(error.text, "or allocate less");
	room.left = UINT64_MAX;
	assert_int_equal(judge(1024 * MIB, &error), -ENOMEM);
	assert_says(error.text, "more than the 900 MiB that the machine has free: allocate less");
	/* Page tables need some too. */
	assert_int_equal(judge(900 * MIB, &error), -ENOMEM);
	assert_int_equal(judge(898 * MIB, &error), 0);
	assert_int_equal(judge(UINT64_MAX, &error), -ENOMEM);
}

EACH_TEST(NULL, cleanup)
