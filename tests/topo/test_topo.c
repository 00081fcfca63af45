/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology layer: other machines (hwloc XML, a fake /sys), and what this machine reports about
 * its file systems, devices and limits. Runs from the root of the repository.
 */
#include <dirent.h>
#include <hwloc.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/files.h"
#include "support/support.h"
#include "topo/topo.h"

/* ---- Shared by the tests ---- */

static struct nvs_error error = {.size = sizeof(error)};
static struct nvs_path_info info = {.size = sizeof(info)};

static struct topo *open_topo(const char *xml_path)
{
	struct topo *topo = NULL;

	SUCCEEDS(topo_open(&topo, xml_path, &error), &error);
	return topo;
}

static int node_of(const struct topo *topo, const char *a, const char *b)
{
	const char *devices[] = {a, b};

	return topo_node_of_devices(topo, devices, b ? 2 : 1);
}

/* ---- Topologies of other machines ---- */

TEST(drives_are_on_the_node_of_their_sockets_if_it_is_one)
{
	static const struct {
		const char *a, *b;
		int node;
	} drives[] = {{"nvme0n1", NULL, 0},
		      {"nvme1n1", NULL, 1},
		      {"nvme0n1", "nvme2n1", 0},
		      {"nvme1n1", "nvme1n1", 1},
		      {"nvme0n1", "nvme1n1", -1},
		      {"nvme1n1", "nvme0n1", -1},
		      /* Unknown drives. */
		      {"nvme7n1", NULL, -1},
		      {"nvme9n1", NULL, -1},
		      {"nvme0n1", "nvme7n1", -1},
		      {"nvme7n1", "nvme0n1", -1}};
	struct topo *topo = open_topo("tests/topo/two_sockets.xml");

	for (size_t i = 0; i < COUNT(drives); i++)
		assert_int_equal(node_of(topo, drives[i].a, drives[i].b), drives[i].node);
	assert_int_equal(topo_node_of_devices(topo, NULL, 0), -1);
	topo_close(topo);
	topo = open_topo("tests/topo/one_node.xml");
	assert_int_equal(node_of(topo, "nvme0n1", NULL), -1);
	topo_close(topo);
}

/* Opens a machine that hwloc synthesizes from a description, through its XML. */
static struct topo *open_made_up(const char *description)
{
	const char *path = path_in(temp_directory(), "made_up.xml");
	hwloc_topology_t hwloc;

	assert_int_equal(hwloc_topology_init(&hwloc), 0);
	assert_int_equal(hwloc_topology_set_synthetic(hwloc, description), 0);
	assert_int_equal(hwloc_topology_load(hwloc), 0);
	assert_int_equal(hwloc_topology_export_xml(hwloc, path, 0), 0);
	hwloc_topology_destroy(hwloc);
	return open_topo(path);
}

TEST(cores_are_counted_by_node_and_not_by_hardware_thread)
{
	static const struct {
		const char *description;
		unsigned machine, node[2];
	} machines[] = {
		{"pack:2 [numa] core:3 pu:2", 6, {3, 3}},
		{"[numa] core:4 pu:1", 4, {4, 0}},
		/* Some virtual machines report hardware threads without cores. */
		{"[numa] pu:3", 3, {3, 0}},
	};

	for (unsigned i = 0; i < COUNT(machines); i++) {
		struct topo *topo = open_made_up(machines[i].description);

		assert_int_equal(topo_cores(topo, -1), machines[i].machine);
		assert_int_equal(topo_cores(topo, 0), machines[i].node[0]);
		assert_int_equal(topo_cores(topo, 1), machines[i].node[1]);
		assert_int_equal(topo_cores(topo, 2), 0);
		topo_close(topo);
	}
}

TEST(nothing_is_bound_by_the_topology_of_another_machine)
{
	struct topo *topo = open_topo("tests/topo/two_sockets.xml");
	char memory[64];

	assert_int_equal(topo_bind_memory(topo, 0, memory, sizeof(memory)), -ENOTSUP);
	assert_int_equal(topo_bind_thread(topo, 0), -ENOTSUP);
	assert_int_equal(topo_bind_thread_to_core(topo, 0, 0), -ENOTSUP);
	topo_close(topo);
}

TEST(a_topology_that_cannot_be_read_is_an_error_that_names_it)
{
	const char *path = path_in(temp_directory(), "broken.xml");
	struct topo *topo = NULL;

	assert_true(topo_open(&topo, path, &error) < 0);
	assert_says(error.text, path);
	write_text(path, "<topology version=\"2.0\"><object");
	assert_true(topo_open(&topo, path, &error) < 0);
	assert_says(error.text, path);
	assert_null(topo);
	topo_close(NULL);
}

/* ---- Binding on this machine ---- */

static int lowest_node(void)
{
	char nodes[64];

	/* The file holds "0" or "0-1"; atoi reads the first number. */
	return sysfs_text(nodes, sizeof(nodes), SYSFS "/devices/system/node/has_memory")
		       ? -1
		       : atoi(nodes);
}

TEST(memory_is_bound_where_the_kernel_permits)
{
	struct topo *topo = open_topo(NULL);
	const size_t nbytes = 1 << 20;
	void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
	int rc = topo_bind_memory(topo, lowest_node(), memory, nbytes), mode = -1;
	long asked;

	assert_ptr_not_equal(memory, MAP_FAILED);
	assert_int_equal(topo_bind_memory(topo, 4095, memory, nbytes), -EINVAL);
	asked = syscall(SYS_get_mempolicy, &mode, NULL, 0, memory, 2 /* MPOL_F_ADDR */);
	munmap(memory, nbytes);
	topo_close(topo);
	if (rc == -EPERM || rc == -ENOTSUP || asked)
		SKIP("the kernel refuses to bind memory here: %s", strerror(rc ? -rc : errno));
	assert_int_equal(rc, 0);
	/*
	 * MPOL_PREFERRED or MPOL_PREFERRED_MANY: with MPOL_BIND, a full node would kill the
	 * process.
	 */
	if (mode != 1 && mode != 5)
		fail_msg("the policy is %d", mode);
}

/* Like taskset, but for every thread; a sanitizer has its own. */
static int confine_process(const cpu_set_t *set)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	int rc = tasks ? 0 : -1;

	while (tasks && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			rc |= sched_setaffinity(atoi(entry->d_name), sizeof(*set), set);
	if (tasks)
		closedir(tasks);
	return rc;
}

/* Confines the process to its last CPU, which is not the default choice. Returns -1 on failure. */
static int confine_to_last_cpu(cpu_set_t *set)
{
	int cpu = CPU_SETSIZE - 1;

	if (sched_getaffinity(0, sizeof(*set), set))
		return -1;
	while (!CPU_ISSET(cpu, set))
		cpu--;
	CPU_ZERO(set);
	CPU_SET(cpu, set);
	return confine_process(set) ? -1 : cpu;
}

static int bind_within_one_cpu(void *arg)
{
	struct topo *topo = NULL;
	cpu_set_t set, after;
	int cpu = confine_to_last_cpu(&set);

	(void)arg;
	if (cpu < 0 || topo_open(&topo, NULL, NULL))
		return CHILD_SKIPPED;
	/* Cores outside the mask do not count. */
	EXPECT(topo_cores(topo, -1) == 1 && topo_bind_thread_to_core(topo, -1, 1) == -EINVAL);
	EXPECT(topo_bind_thread(topo, 0) == (topo_cores(topo, 0) > 0 ? 0 : -EINVAL));
	EXPECT(!sched_getaffinity(0, sizeof(after), &after) && CPU_EQUAL(&set, &after));
	EXPECT(topo_bind_thread_to_core(topo, -1, 0) == 0);
	EXPECT(!sched_getaffinity(0, sizeof(after), &after) && CPU_EQUAL(&set, &after));
	topo_close(topo);
	return CHILD_OK;
}

TEST(binding_stays_within_the_affinity_mask)
{
	pass_in_child(bind_within_one_cpu, NULL, "the affinity can't be set here");
}

/* Binds to every core in turn: the CPU sets are disjoint, and their union is the process's set. */
static int bind_to_each_core(void *arg)
{
	cpu_set_t given, bound, together, both;
	struct topo *topo = NULL;
	unsigned n;

	(void)arg;
	if (sched_getaffinity(0, sizeof(given), &given) || topo_open(&topo, NULL, NULL))
		return CHILD_SKIPPED;
	n = topo_cores(topo, -1);
	CPU_ZERO(&together);
	for (unsigned i = 0; i < n; i++) {
		int rc = topo_bind_thread_to_core(topo, -1, i);

		if (rc == -ENOTSUP || rc == -EPERM)
			return CHILD_SKIPPED;
		if (rc || sched_getaffinity(0, sizeof(bound), &bound))
			return CHILD_WRONG;
		CPU_AND(&both, &bound, &together);
		if (!CPU_COUNT(&bound) || CPU_COUNT(&both))
			return CHILD_WRONG;
		CPU_OR(&together, &together, &bound);
	}
	topo_close(topo);
	return CPU_EQUAL(&together, &given) ? CHILD_OK : CHILD_WRONG;
}

TEST(a_thread_is_bound_to_any_core)
{
	pass_in_child(bind_to_each_core, NULL, "the affinity can't be set here");
}

/* ---- Block devices of other machines: a fake /sys in a directory ---- */

static const char *sys; /* its root */

static void fake_file(const char *text, const char *name)
{
	write_below(sys, name, text);
}

static void fake_link(const char *from, const char *to)
{
	const char *path = path_in(sys, from);
	char root[PATH_MAX], *target;

	/* Makes the parent directories of the link. */
	fake_file("", from);
	assert_int_equal(unlink(path), 0);
	assert_non_null(realpath(sys, root));
	assert_true(asprintf(&target, "%s/%s", root, to) > 0);
	assert_int_equal(symlink(target, path), 0);
	free(target);
}

/*
 * Two drives with a partition each; md0 over both partitions; dm-0 over md0; dm-1 over a partition
 * of the first drive; dm-2 over itself, which no kernel reports.
 */
static void fake_drives(void)
{
	sys = temp_directory();
	fake_file("1\n", "devices/pci/nvme0/nvme0n1/nvme0n1p1/partition");
	fake_file("1\n", "devices/pci/nvme1/nvme1n1/nvme1n1p1/partition");
	fake_link("dev/block/259:0", "devices/pci/nvme0/nvme0n1");
	fake_link("dev/block/259:1", "devices/pci/nvme0/nvme0n1/nvme0n1p1");
	fake_link("devices/virtual/md0/slaves/nvme1n1p1", "devices/pci/nvme1/nvme1n1/nvme1n1p1");
	fake_link("devices/virtual/md0/slaves/nvme0n1p1", "devices/pci/nvme0/nvme0n1/nvme0n1p1");
	fake_link("devices/virtual/dm-0/slaves/md0", "devices/virtual/md0");
	fake_link("devices/virtual/dm-1/slaves/nvme0n1p1", "devices/pci/nvme0/nvme0n1/nvme0n1p1");
	fake_link("devices/virtual/dm-2/slaves/dm-2", "devices/virtual/dm-2");
	fake_link("dev/block/253:0", "devices/virtual/dm-0");
	fake_link("dev/block/253:1", "devices/virtual/dm-1");
	fake_link("dev/block/253:2", "devices/virtual/dm-2");
}

TEST(the_drives_beneath_partitions_mappers_and_raids_are_found)
{
	char names[DEVICES_MAX][64];

	fake_drives();
	/* The drive, its partition, and a mapper over the partition. */
	for (unsigned i = 0; i < 3; i++) {
		const unsigned major[] = {259, 259, 253}, minor[] = {0, 1, 1};

		assert_int_equal(sysfs_disks(sys, major[i], minor[i], names), 1);
		assert_string_equal(names[0], "nvme0n1");
	}
	assert_int_equal(sysfs_disks(sys, 253, 0, names), 2);
	assert_string_equal(names[0], "nvme0n1");
	assert_string_equal(names[1], "nvme1n1");
	assert_int_equal(sysfs_disks(sys, 8, 0, names), 0);
	/* The search in a cycle ends. */
	sysfs_disks(sys, 253, 2, names);
}

TEST(more_drives_than_fit_do_not_overflow)
{
	char names[DEVICES_MAX][64], from[64], to[64], dev[80];

	sys = temp_directory();
	for (unsigned i = 0; i < DEVICES_MAX + 3; i++) {
		snprintf(to, sizeof(to), "devices/pci/sd%c", 'a' + i);
		snprintf(from, sizeof(from), "devices/virtual/md0/slaves/sd%c", 'a' + i);
		snprintf(dev, sizeof(dev), "%s/dev", to);
		fake_file("8:0\n", dev);
		fake_link(from, to);
	}
	fake_link("dev/block/9:0", "devices/virtual/md0");
	assert_int_equal(sysfs_disks(sys, 9, 0, names), DEVICES_MAX);
}

TEST(the_kernel_is_asked_for_the_node_of_a_drive_of_several_paths)
{
	sys = temp_directory();
	fake_file("1\n", "block/nvme0n1/device/device/numa_node");
	fake_file("0\n", "block/nvme1n1/device/nvme4/device/numa_node");
	fake_file("0\n", "block/nvme1n1/device/nvme7/device/numa_node");
	fake_file("0\n", "block/nvme2n1/device/nvme5/device/numa_node");
	fake_file("1\n", "block/nvme2n1/device/nvme6/device/numa_node");
	fake_file("-1\n", "block/vda/device/device/numa_node");
	assert_int_equal(sysfs_node(sys, "nvme0n1"), 1);
	assert_int_equal(sysfs_node(sys, "nvme1n1"), 0);
	assert_int_equal(sysfs_node(sys, "nvme2n1"), -1);
	assert_int_equal(sysfs_node(sys, "vda"), -1);
	assert_int_equal(sysfs_node(sys, "sda"), -1);
}

TEST(small_files_are_read_as_text_numbers_and_choices)
{
	char text[64], tight[4];

	sys = temp_directory();
	fake_file("none [mq-deadline] kyber \n", "scheduler");
	fake_file("none\n", "only");
	fake_file("4096 kB\n", "number");
	assert_int_equal(sysfs_text(text, sizeof(text), "%s/scheduler", sys), 0);
	assert_string_equal(text, "none [mq-deadline] kyber");
	sysfs_choice(text);
	assert_string_equal(text, "mq-deadline");
	assert_int_equal(sysfs_text(text, sizeof(text), "%s/only", sys), 0);
	sysfs_choice(text);
	assert_string_equal(text, "none");
	assert_int_equal(sysfs_text(tight, sizeof(tight), "%s/only", sys), 0);
	assert_string_equal(tight, "non");
	assert_int_equal(file_number(path_in(sys, "number"), "", 7), 4096);
	assert_int_equal(file_number(path_in(sys, "only"), "", 7), 7);
	assert_int_equal(file_number(path_in(sys, "missing"), "", 7), 7);
	assert_int_equal(sysfs_text(text, sizeof(text), "%s/missing", sys), -ENOENT);
	assert_string_equal(text, "");
}

TEST(a_line_of_mountinfo_gives_type_and_source)
{
	struct mount mount;

	assert_true(
		mount_parse("36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/root rw\n", &mount));
	assert_string_equal(mount.type, "ext4");
	assert_string_equal(mount.source, "/dev/root");
	/* No optional fields; an escaped space in the name. */
	assert_true(
		mount_parse("40 1 0:33 /@home /home rw - btrfs /dev/my\\040disk\\134x rw", &mount));
	assert_string_equal(mount.type, "btrfs");
	assert_string_equal(mount.source, "/dev/my disk\\x");
	assert_false(mount_parse("", &mount));
	assert_false(mount_parse("36 35 98:0 / /mnt rw - ext4", &mount));
}

/* A program may mount with a source of any length. */
TEST(a_source_that_is_cut_within_an_escape_is_taken_as_it_is)
{
	struct {
		struct mount mount;
		char behind[16];
	} at;
	char line[512];

	for (size_t length = sizeof(at.mount.source) - 5; length < sizeof(at.mount.source);
	     length++) {
		at.mount = (struct mount){0};
		memset(at.behind, 'b', sizeof(at.behind));
		snprintf(line, sizeof(line), "40 1 0:33 / /mnt rw - tmpfs %0*d\\040x rw",
			 (int)length, 0);
		assert_true(mount_parse(line, &at.mount));
		assert_true(strlen(at.mount.source) < sizeof(at.mount.source));
		for (size_t i = 0; i < sizeof(at.behind); i++)
			assert_int_equal(at.behind[i], 'b');
	}
}

/* ---- Direct I/O and devices on this machine ---- */

static void assert_direct_io_works(int fd, const struct dio_caps *caps)
{
	const size_t nbytes = caps->offset_align;
	const size_t around = caps->mem_align > 2048 ? 2 * (size_t)caps->mem_align : 4096;
	char path[32], *memory = NULL;
	int direct;

	assert_true(caps->mem_align && !(caps->mem_align & (caps->mem_align - 1)));
	assert_true(caps->offset_align && !(caps->offset_align & (caps->offset_align - 1)));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	assert_true(direct >= 0);
	/* Aligned to mem_align, but not to more. */
	assert_int_equal(posix_memalign((void **)&memory, around, nbytes + around), 0);
	memset(memory + caps->mem_align, 7, nbytes);
	assert_int_equal(pwrite(direct, memory + caps->mem_align, nbytes, (off_t)nbytes), nbytes);
	assert_int_equal(pread(direct, memory + caps->mem_align, nbytes, (off_t)nbytes), nbytes);
	free(memory);
	close(direct);
}

TEST(the_reported_alignments_suffice_for_direct_io)
{
	int fd = open(".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	struct dio_caps caps;

	if (fd < 0)
		SKIP("no O_TMPFILE on the file system of this tree: %s", strerror(errno));
	assert_int_equal(dio_probe(fd, &caps), 0);
	if (caps.direct)
		assert_direct_io_works(fd, &caps);
	close(fd);
	if (!caps.direct)
		SKIP("the file system of this tree has no direct I/O");
}

TEST(what_has_no_drive_is_not_direct_and_closed_descriptors_are_errors)
{
	char names[DEVICES_MAX][64];
	struct dio_caps caps;
	int ends[2], fds[4] = {memfd_create("test", MFD_CLOEXEC),
			       open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600),
			       open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)};

	assert_int_equal(path_devices(fds[0], names), 0);
	assert_int_equal(path_devices(-1, names), 0);
	assert_int_equal(pipe(ends), 0);
	fds[3] = ends[0];
	for (size_t i = 0; i < COUNT(fds); i++) {
		if (fds[i] < 0)
			continue;
		assert_int_equal(dio_probe(fds[i], &caps), 0);
		assert_false(caps.direct);
		assert_int_equal(caps.mem_align, 0);
		assert_int_equal(caps.offset_align, 0);
		close(fds[i]);
	}
	close(ends[1]);
	assert_int_equal(dio_probe(-1, &caps), -EBADF);
}

TEST(the_drives_of_the_tree_are_in_sys_block)
{
	char names[DEVICES_MAX][64], path[128];
	int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned n = path_devices(fd, names);

	close(fd);
	if (!n)
		SKIP("the drive beneath this tree is unknown (a container's overlay?)");
	for (unsigned i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "/sys/block/%.63s", names[i]);
		assert_int_equal(access(path, F_OK), 0);
		assert_true(device_attribute(names[i], "queue/logical_block_size", 0) >= 512);
		assert_int_equal(device_attribute(names[i], "queue/no_such_thing", 77), 77);
	}
}

#define LOOP_BYTES (16 << 20)

TEST(a_block_device_is_direct_and_is_its_own_drive)
{
	char names[DEVICES_MAX][64];
	const char *path = need_device(LOOP_BYTES, 512);
	struct dio_caps caps;
	int fd;

	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_int_equal(dio_probe(fd, &caps), 0);
	assert_true(caps.direct);
	assert_direct_io_works(fd, &caps);
	assert_int_equal(path_devices(fd, names), 1);
	assert_string_equal(names[0], path + strlen("/dev/"));
	SUCCEEDS(nvs_path_get_info(path, &info, &error), &error);
	assert_true(info.block_device && info.direct);
	assert_string_equal(info.filesystem, "block device");
	assert_string_equal(info.device, names[0]);
	assert_int_equal(info.total_bytes, LOOP_BYTES);
	assert_int_equal(info.dio_offset_align, caps.offset_align);
	assert_true(info.logical_block_bytes >= 512 && info.max_io_bytes > 0);
	close(fd);
}

TEST(a_file_system_is_reported_with_its_device)
{
	const char *directory = need_ext4(LOOP_BYTES, 512);

	SUCCEEDS(nvs_path_get_info(directory, &info, &error), &error);
	assert_string_equal(info.filesystem, "ext4");
	assert_int_equal(strncmp(info.device, "loop", 4), 0);
	assert_true(info.direct && !info.block_device);
	assert_true(info.free_bytes > 0 && info.free_bytes < info.total_bytes);
	assert_true(info.total_bytes <= LOOP_BYTES);
}

/* ---- Capabilities of a path ---- */

TEST(inspecting_a_directory_leaves_nothing_in_it)
{
	const char *directory = temp_directory();

	SUCCEEDS(nvs_path_get_info(directory, &info, &error), &error);
	assert_string_equal(info.path, directory);
	assert_string_not_equal(info.filesystem, "");
	assert_false(info.block_device);
	assert_true(info.total_bytes > 0 && info.free_bytes <= info.total_bytes);
	assert_int_equal(info.direct, info.dio_mem_align != 0);
	assert_int_equal(info.direct, info.dio_offset_align != 0);
	assert_int_equal(entries_of(directory), 0);
}

TEST(a_path_on_tmpfs_is_reported_as_memory)
{
	struct mount mount;
	int fd = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || !mount_of(fd, &mount) || strcmp(mount.type, "tmpfs") != 0 ||
	    access("/dev/shm", W_OK))
		SKIP("/dev/shm is not a writable tmpfs");
	close(fd);
	assert_int_equal(nvs_path_get_info("/dev/shm", &info, NULL), 0);
	assert_string_equal(info.filesystem, "tmpfs");
	assert_false(info.direct);
	assert_string_equal(info.device, "");
	assert_int_equal(info.numa_node, -1);
}

TEST(a_missing_path_is_reported_with_its_existing_part)
{
	const char *directory = temp_directory();
	char path[96], command[128];

	snprintf(path, sizeof(path), "%s/not/there", directory);
	assert_int_equal(nvs_path_get_info(path, &info, &error), -ENOENT);
	assert_int_equal(error.code, -ENOENT);
	snprintf(command, sizeof(command), "(%s, above it, does)", directory);
	assert_says(error.text, command);
	snprintf(command, sizeof(command), "mkdir -p '%s'", path);
	assert_says(error.text, command);
	assert_int_equal(nvs_path_get_info("nowhere", &info, &error), -ENOENT);
	assert_says(error.text, "(., above");
	assert_int_equal(nvs_path_get_info("/nowhere-at-all/x", &info, &error), -ENOENT);
	assert_says(error.text, "(/, above");
	assert_int_equal(nvs_path_get_info("nowhere", &info, NULL), -ENOENT);
}

TEST(a_path_of_the_wrong_kind_is_refused)
{
	char long_path[600];

	assert_int_equal(nvs_path_get_info("/dev/null", &info, &error), -EINVAL);
	assert_says(error.text, "/dev/null is neither a directory");
	assert_int_equal(nvs_path_get_info("", &info, &error), -EINVAL);
	assert_says(error.text, "empty");
	/* Every path that is missing is named, that of a shell too. */
	assert_int_equal(nvs_path_get_info("~/nvme", &info, &error), -ENOENT);
	assert_says(error.text, "begins with ~");
	assert_int_equal(error.path_nbytes, strlen("~/nvme"));
	assert_memory_equal(error.text + error.path_at, "~/nvme", error.path_nbytes);
	assert_int_equal(nvs_path_get_info("Makefile/x", &info, &error), -ENOTDIR);
	assert_says(error.text, "Makefile/x");
	memset(long_path, 'a', sizeof(long_path) - 1);
	long_path[sizeof(long_path) - 1] = '\0';
	assert_int_equal(nvs_path_get_info(long_path, &info, &error), -ENAMETOOLONG);
	assert_says(error.text, "599");
	assert_true(nvs_path_get_info("/proc", &info, &error) < 0);
	assert_says(error.text, "/proc");
	assert_null(strstr(error.text, "does not exist"));
	/* Only root gets as far as the file system. */
	if (geteuid() != 0) {
		assert_int_equal(nvs_path_get_info("/sys", &info, &error), -EACCES);
		return;
	}
	assert_int_equal(nvs_path_get_info("/sys", &info, &error), -EOPNOTSUPP);
	assert_says(error.text, "use a directory on a drive");
}

static int look_without_rights(void *arg)
{
	if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
		return CHILD_SKIPPED;
	return nvs_path_get_info(arg, &info, &error) == -EACCES &&
			       strstr(error.text, "readable and writable")
		       ? CHILD_OK
		       : CHILD_WRONG;
}

TEST(a_directory_that_may_not_be_written_is_refused)
{
	/* Other users can reach it. */
	const char *memory = memory_directory(), *directory = memory ? memory : temp_directory();

	assert_int_equal(chmod(directory, 0555), 0);
	pass_in_child(look_without_rights, (void *)(uintptr_t)directory,
		      "root's privileges can't be dropped here");
}

/* ---- Where reserved space may not suffice ---- */

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

/* ---- Limits and facts of this machine */

enum { DROPPED, KEPT, IN_A_NAMESPACE };

/* The limit is 1 MiB, but for a process with the capability in the initial user namespace. */
static int look_at_limit(void *arg)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
	struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
	const int how = *(int *)arg;
	char map[64];

	if (setrlimit(RLIMIT_MEMLOCK, &limit) ||
	    (how == IN_A_NAMESPACE && unshare(CLONE_NEWUSER)) ||
	    (how == KEPT &&
	     (sysfs_text(map, sizeof(map), "/proc/self/uid_map") || !strstr(map, "4294967295"))) ||
	    syscall(SYS_capget, &header, data))
		return CHILD_SKIPPED;
	if (how == DROPPED) {
		data[0].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
		if (syscall(SYS_capset, &header, data))
			return CHILD_SKIPPED;
	} else if (!(data[0].effective & CAP_TO_MASK(CAP_IPC_LOCK))) {
		return CHILD_SKIPPED;
	}
	EXPECT(memlock_limit() == (how == KEPT ? UINT64_MAX : 1 << 20));
	return CHILD_OK;
}

TEST(the_memlock_limit_is_that_of_the_process)
{
	pass_in_child(look_at_limit, &(int){DROPPED}, "RLIMIT_MEMLOCK can't be set here");
}

TEST(cap_ipc_lock_lifts_the_memlock_limit)
{
	pass_in_child(look_at_limit, &(int){KEPT}, "this process has no CAP_IPC_LOCK");
}

TEST(a_capability_in_a_user_namespace_lifts_no_limit)
{
	pass_in_child(look_at_limit, &(int){IN_A_NAMESPACE}, "no user namespace can be made here");
}

TEST(the_facts_of_the_machine_are_those_of_the_kernel)
{
	struct nvs_machine_info facts = {.size = sizeof(facts)};

	memset(&facts, 0xff, sizeof(facts));
	machine_facts(&facts);
	assert_string_not_equal(facts.kernel, "");
	assert_int_equal(facts.cpus, sysconf(_SC_NPROCESSORS_ONLN));
	assert_true(facts.numa_nodes >= 1);
	assert_true(facts.memory_bytes > 16 << 20);
	assert_int_equal(facts.memlock_bytes, memlock_limit());
	assert_true(facts.hugepages_free <= facts.hugepages_total);
	assert_int_equal(facts.io_uring_disabled,
			 file_number("/proc/sys/kernel/io_uring_disabled", "", (unsigned)-1));
	assert_int_equal(facts.aio_max_nr, file_number("/proc/sys/fs/aio-max-nr", "", 0));
	assert_null(strchr(facts.transparent_hugepages, '['));
	assert_false(facts.ioengine[NVS_IOENGINE_POSIX].works);
}

/* ---- Advice */

/* A machine and a path without any harm. */
static const struct nvs_machine_info good_machine = {
	.size = sizeof(good_machine),
	.kernel = "6.8.0",
	.numa_nodes = 2,
	.memory_bytes = UINT64_C(512) << 30,
	.memlock_bytes = UINT64_MAX,
	.hugepage_bytes = 2 << 20,
	.hugepages_total = 1000,
	.hugepages_free = 1000,
	.transparent_hugepages = "madvise",
	.aio_nr = 100,
	.aio_max_nr = 65536,
	.ioengine = {{.works = true}, {.works = true}, {.works = true}, {.works = true}},
};

static const struct nvs_path_info good_path = {
	.size = sizeof(good_path),
	.path = "/mnt/nvme",
	.filesystem = "xfs",
	.direct = true,
	.dio_mem_align = 4,
	.dio_offset_align = 512,
	.dio_from_statx = true,
	.free_bytes = UINT64_C(500) << 30,
	.total_bytes = UINT64_C(1000) << 30,
	.device = "nvme0n1",
	.scheduler = "none",
	.max_io_bytes = 1280 << 10,
	.max_hw_io_bytes = 2048 << 10,
	.numa_node = 1,
};

static struct nvs_machine_info machine;
static struct nvs_path_info path;
static struct nvs_advice advice;

static void unharmed(void)
{
	machine = good_machine;
	path = good_path;
	memset(&advice, 0xff, sizeof(advice));
	advice.size = sizeof(advice);
}

typedef void harm_fn(void);

#define HARM(name, statement)                                                                      \
	static void name(void)                                                                     \
	{                                                                                          \
		statement;                                                                         \
	}

static void no_io_uring(int disabled)
{
	machine.ioengine[NVS_IOENGINE_IO_URING].works = false;
	machine.io_uring_disabled = disabled;
}

HARM(tmpfs, path.direct = false; strcpy(path.filesystem, "tmpfs"))
HARM(no_direct, path.direct = false; strcpy(path.filesystem, "overlay"))
HARM(rotating, path.rotational = true; strcpy(path.device, "sda"))
HARM(uring_off, no_io_uring(2))
HARM(uring_for_a_group, no_io_uring(1))
HARM(uring_blocked, no_io_uring(0))
HARM(uring_too_old, no_io_uring(-1); strcpy(machine.kernel, "4.18.0-553.el8.x86_64"))
HARM(memlock_8m, machine.memlock_bytes = 8 << 20)
HARM(no_hugepages, machine.hugepages_free = machine.hugepages_total = 0)
HARM(hugepages_taken, machine.hugepages_free = 40)
HARM(thp_never, strcpy(machine.transparent_hugepages, "never"))
HARM(aio_full, machine.aio_nr = 65000)
HARM(nvme_scheduler, strcpy(path.scheduler, "mq-deadline"))
HARM(virtio_scheduler, strcpy(path.scheduler, "bfq"); strcpy(path.device, "vda"))
HARM(raid_scheduler, strcpy(path.scheduler, "kyber"); strcpy(path.device, "nvme0n1,nvme1n1"))
HARM(cut_ios, path.max_io_bytes = 128 << 10)
HARM(cut_ios_hw, path.max_io_bytes = 128 << 10; path.max_hw_io_bytes = 256 << 10)
HARM(far_drive, path.numa_node = -1)
HARM(offset_64k, path.dio_offset_align = 65536)
HARM(mem_8k, path.dio_mem_align = 8192)
HARM(full, path.free_bytes = path.total_bytes / 11)

static const struct {
	harm_fn *harm;
	const char *hurts, *change;
} harms[] = {
	{tmpfs, "/mnt/nvme is tmpfs", "findmnt -t ext4,xfs"},
	{no_direct, "(overlay) has no direct I/O", "findmnt -t ext4,xfs"},
	{rotating, "sda is a rotating disk", "lsblk -d"},
	{uring_off, "kernel.io_uring_disabled=2", "sysctl -w kernel.io_uring_disabled=0"},
	{uring_for_a_group, "one group", "sysctl kernel.io_uring_group"},
	{uring_blocked, "io_uring is blocked", "docker run --security-opt seccomp=unconfined"},
	{uring_too_old, "Linux 4.18.0-553.el8.x86_64 has no io_uring", "use Linux 5.11"},
	{memlock_8m, "only 8 MiB may be locked", "ulimit -l unlimited"},
	{no_hugepages, "0 huge pages of 2 MiB are free", "sysctl -w vm.nr_hugepages=477"},
	/* Others use 960, and the pool needs 477 more. */
	{hugepages_taken, "40 huge pages of 2 MiB are free", "sysctl -w vm.nr_hugepages=1437"},
	{thp_never, "transparent huge pages are off",
	 "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"},
	{aio_full, "65000 of the 65536", "sysctl -w fs.aio-max-nr=1048576"},
	{nvme_scheduler, "mq-deadline", "echo none | tee /sys/block/nvme0n1/queue/scheduler"},
	{virtio_scheduler, "bfq", "echo none | tee /sys/block/vda/queue/scheduler"},
	{raid_scheduler, "kyber", "echo none | tee /sys/block/{nvme0n1,nvme1n1}/queue/scheduler"},
	{cut_ios, "I/Os into 128 KiB", "echo 1024 | tee /sys/block/nvme0n1/queue/max_sectors_kb"},
	{cut_ios_hw, "I/Os into 128 KiB", "echo 256 | tee /sys/block/nvme0n1/queue/max_sectors_kb"},
	{far_drive, "NUMA node of nvme0n1", "numactl --cpunodebind=N"},
	{offset_64k, "units of 64 KiB of file", "mkfs.xfs -b size=4096"},
	{mem_8k, "8 KiB of memory", "mkfs.xfs -b size=4096"},
	{full, "are free at /mnt/nvme", "fstrim -a"},
};

TEST(each_harm_is_named_once_with_its_remedy)
{
	for (unsigned i = 0; i < COUNT(harms); i++) {
		unharmed();
		harms[i].harm();
		nvs_machine_advise(&machine, &path, &advice);
		if (advice.count != 1 || !strstr(advice.line[0], harms[i].hurts) ||
		    !strstr(advice.line[0], harms[i].change))
			fail_msg("\"%s\": %u lines, first: %s", harms[i].hurts, advice.count,
				 advice.line[0]);
	}
}

HARM(small_hw, path.max_io_bytes = path.max_hw_io_bytes = 128 << 10)
HARM(one_node, machine.numa_nodes = 1; path.numa_node = -1)
HARM(virtio_turns, path.rotational = true; strcpy(path.device, "vdb"))
HARM(full_device, path.block_device = true; path.free_bytes = 0)
HARM(disk_scheduler, strcpy(path.scheduler, "mq-deadline"); strcpy(path.device, "sda"))
HARM(uring_off_but_works, machine.io_uring_disabled = 1)
HARM(small_machine, machine.memory_bytes = 1 << 30; machine.hugepages_free = 128)
HARM(unknown_limits, machine.aio_max_nr = machine.aio_nr = 0; machine.hugepage_bytes = 0;
     machine.transparent_hugepages[0] = '\0')

TEST(advice_omits_settings_that_cannot_be_changed)
{
	static harm_fn *const harmless[] = {small_hw,	   one_node,	   virtio_turns,
					    full_device,   disk_scheduler, uring_off_but_works,
					    small_machine, unknown_limits};

	for (unsigned i = 0; i <= COUNT(harmless); i++) {
		unharmed();
		if (i < COUNT(harmless))
			harmless[i]();
		nvs_machine_advise(&machine, &path, &advice);
		if (advice.count)
			fail_msg("case %u: %s", i, advice.line[0]);
	}
}

TEST(advice_is_complete_when_every_harm_applies)
{
	unharmed();
	for (unsigned i = 0; i < COUNT(harms); i++)
		harms[i].harm();
	memset(path.path, 'p', sizeof(path.path) - 1);
	memset(path.filesystem, 'f', sizeof(path.filesystem) - 1);
	memset(path.scheduler, 's', sizeof(path.scheduler) - 1);
	snprintf(path.device, sizeof(path.device), "nvme0n1,%055d", 0);
	path.direct = true;
	machine.io_uring_disabled = 1;
	memset(machine.kernel, '9', sizeof(machine.kernel) - 1);
	for (int pass = 0; pass < 4; pass++) {
		nvs_machine_advise(&machine, &path, &advice);
		assert_in_range(advice.count, 7, COUNT(advice.line));
		/* A full line is a truncated one, and its command with it. */
		for (unsigned i = 0; i < advice.count; i++)
			if (strlen(advice.line[i]) >= sizeof(advice.line[i]) - 1)
				fail_msg("cut: %s", advice.line[i]);
		path.direct = pass != 0;
		machine.io_uring_disabled = pass == 1 ? 2 : 0;
		machine.kernel[0] = pass == 2 ? '4' : '9';
		machine.kernel[1] = '.';
	}
}

TEST(advice_lists_the_worst_harm_first)
{
	unharmed();
	full();
	memlock_8m();
	tmpfs();
	nvs_machine_advise(&machine, &path, &advice);
	assert_int_equal(advice.count, 3);
	assert_says(advice.line[0], "is tmpfs");
	assert_says(advice.line[1], "may be locked");
	assert_says(advice.line[2], "fstrim");
	/* Without a path, the advice for the machine is the same. */
	nvs_machine_advise(&machine, NULL, &advice);
	assert_int_equal(advice.count, 1);
	assert_says(advice.line[0], "may be locked");
}

EACH_TEST(NULL, cleanup)
