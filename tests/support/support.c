/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See support.h. Devices and mounts need root; without it, functions return the reason. Never
 * changes a setting of the machine: mounts are in the process's own namespace.
 */
#include "support/support.h"

#include <assert.h>
#include <dirent.h>
#include <ftw.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/loop.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

unsigned at_length(unsigned all, unsigned few)
{
	return getenv("AT_LENGTH") ? all : few;
}

/* Directories, mounts and devices of the tests, removed in reverse order. */
struct made {
	enum { DIRECTORY, MOUNT, LOOP, NAME } what;
	char *path;
	int fd; /* of a loop device, which detaches when it is closed */
};

static struct made made[256];
static size_t nmade, nkept; /* the first `nkept` stay until cleanup_all() */

static const char *remember(int what, const char *path, int fd)
{
	assert(nmade < COUNT(made));
	made[nmade] = (struct made){.what = what, .path = strdup(path), .fd = fd};
	assert_non_null(made[nmade].path);
	return made[nmade++].path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *walk)
{
	(void)st;
	(void)type;
	(void)walk;
	return remove(path);
}

int remove_tree(const char *path)
{
	return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int cleanup(void **state)
{
	int rc = 0;

	(void)state;
	while (nmade > nkept) {
		struct made *one = &made[--nmade];
		int failed = 0;

		if (one->what == DIRECTORY)
			failed = remove_tree(one->path);
		else if (one->what == LOOP)
			failed = close(one->fd);
		else if (one->what == MOUNT)
			/* The test may have unmounted it. */
			failed = umount2(one->path, MNT_DETACH) && errno != EINVAL;
		if (failed) {
			print_error("%s can't be removed: %s\n", one->path, strerror(errno));
			rc = -1;
		}
		free(one->path);
	}
	return rc;
}

void keep_made(void)
{
	nkept = nmade;
}

int cleanup_all(void **state)
{
	nkept = 0;
	return cleanup(state);
}

/* ---- Random data ---- */

uint64_t random_seed(const char *name)
{
	uint64_t seed = 0xcbf29ce484222325u;

	for (; *name; name++)
		seed = (seed ^ (unsigned char)*name) * 0x100000001b3u;
	print_message("seed %#" PRIx64 "\n", seed);
	return seed;
}

uint64_t random_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t random_below(uint64_t *state, uint64_t n)
{
	return random_next(state) % n;
}

double random_value(uint64_t *state)
{
	return (double)(random_next(state) >> 11) / 0x1p52 - 1;
}

void random_fill(uint64_t *state, void *data, size_t nbytes)
{
	char *to = data;

	for (size_t i = 0; i < nbytes; i += sizeof(uint64_t)) {
		uint64_t word = random_next(state);

		memcpy(to + i, &word, nbytes - i < sizeof(word) ? nbytes - i : sizeof(word));
	}
}

/* ---- Directories and devices ---- */

static const char *new_directory(const char *parent)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/nvswap-test-XXXXXX", parent);
	if (!mkdtemp(path))
		return NULL;
	return remember(DIRECTORY, path, -1);
}

const char *temp_directory(void)
{
	const char *directory;

	(void)mkdir("build", 0755);
	(void)mkdir("build/tmp", 0755);
	directory = new_directory("build/tmp");
	if (!directory)
		fail_msg("no directory can be made in build/tmp: %s", strerror(errno));
	return directory;
}

const char *memory_directory(void)
{
	return new_directory("/dev/shm");
}

const char *path_in(const char *directory, const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	return remember(NAME, path, -1);
}

void data_path(const char *directory, char path[512])
{
	DIR *files = opendir("/proc/self/fd");
	char *real = realpath(directory, NULL);
	size_t length = real ? strlen(real) : 0;

	assert_true(files && snprintf(path, 512, "%s/data", directory) < 512);
	for (struct dirent *file; length && (file = readdir(files));) {
		char name[300], target[1024];
		ssize_t n;

		snprintf(name, sizeof(name), "/proc/self/fd/%s", file->d_name);
		n = readlink(name, target, sizeof(target) - 1);
		target[n > 0 ? n : 0] = 0;
		if (!strncmp(target, real, length) && !strncmp(target + length, "/#", 2))
			snprintf(path, 512, "%s", name);
	}
	free(real);
	closedir(files);
}

unsigned entries_of(const char *directory)
{
	DIR *open = opendir(directory);
	unsigned n = 0;

	assert_non_null(open);
	while (readdir(open))
		n++;
	closedir(open);
	return n - 2;
}

void write_text(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	if (!file)
		fail_msg("%s can't be made: %s", path, strerror(errno));
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

void write_below(const char *root, const char *path, const char *text)
{
	char whole[1024];

	snprintf(whole, sizeof(whole), "%s/%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = '\0';
		assert_true(!mkdir(whole, 0777) || errno == EEXIST);
	}
	write_text(whole, text);
}

char *file_text(const char *path)
{
	char *text = calloc(1, (1 << 20) + 1);
	FILE *file = fopen(path, "re");

	assert_non_null(text);
	if (!file)
		fail_msg("%s: %s; tests run from the root of the repository", path,
			 strerror(errno));
	assert_true(fread(text, 1, 1 << 20, file) < 1 << 20);
	fclose(file);
	return text;
}

/* Closes `backing`. Another process may attach the free device first. */
static const char *loop_on(int backing, unsigned sector_bytes, uint32_t flags, const char **why)
{
	static char reason[128];
	const struct loop_config config = {
		.fd = (unsigned)backing,
		.block_size = sector_bytes,
		.info = {.lo_flags = LO_FLAGS_AUTOCLEAR | flags},
	};
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), fd = -1;
	int rc = control < 0 ? -errno : -EBUSY;
	char path[32];

	for (int tries = 0; tries < 20 && rc == -EBUSY; tries++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		snprintf(path, sizeof(path), "/dev/loop%d", number);
		fd = number < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
		rc = fd < 0 || ioctl(fd, LOOP_CONFIGURE, &config) ? -errno : 0;
		if (rc && fd >= 0)
			close(fd);
	}
	close(control);
	close(backing);
	if (!rc)
		return remember(LOOP, path, fd);
	snprintf(reason, sizeof(reason), "no loop device with sectors of %u bytes can be had: %s",
		 sector_bytes, strerror(-rc));
	*why = reason;
	return NULL;
}

const char *loop_device(uint64_t nbytes, unsigned sector_bytes, const char **why)
{
	/* In memory if possible, which is fast and wears no drive. */
	const char *directory = memory_directory();
	const char *path = path_in(directory ? directory : temp_directory(), "device");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, (off_t)nbytes))
		fail_msg("%s can't be made: %s", path, strerror(errno));
	return loop_on(fd, sector_bytes, 0, why);
}

const char *loop_device_over(const char *path, const char **why)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		fail_msg("%s can't be opened: %s", path, strerror(errno));
	return loop_on(fd, 512, LO_FLAGS_DIRECT_IO, why);
}

const char *file_system_on(const char *device, const char *type, const char *make_options,
			   const char *mount_options, const char **why)
{
	static bool own; /* a mount namespace of the process, so that mounts end with it */
	static char reason[64];
	const char *directory = temp_directory();
	char command[256];

	*why = reason;
	snprintf(reason, sizeof(reason), "there is no mkfs.%s, or it fails", type);
	snprintf(command, sizeof(command),
		 "PATH=$PATH:/usr/sbin:/sbin mkfs.%s -q %s %s %s >/dev/null 2>&1", type,
		 strcmp(type, "ext4") ? "-f" : "-F", make_options, device);
	if (system(command))
		return NULL;
	snprintf(reason, sizeof(reason), "%s can't be mounted here", type);
	own = own || (!unshare(CLONE_NEWNS) && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	if (!own || mount(device, directory, type, 0, mount_options))
		return NULL;
	return remember(MOUNT, directory, -1);
}

const char *need_device(uint64_t nbytes, unsigned sector_bytes)
{
	const char *why = NULL, *device = loop_device(nbytes, sector_bytes, &why);

	if (!device)
		SKIP("%s", why);
	return device;
}

const char *need_file_system(const char *type, uint64_t nbytes, unsigned sector_bytes)
{
	const char *why, *directory = file_system_on(need_device(nbytes, sector_bytes), type, "",
						     NULL, &why);

	if (!directory)
		SKIP("%s", why);
	return directory;
}

const char *need_ext4_on(const char *device, const char *make_options, const char *mount_options)
{
	const char *why,
		*directory = file_system_on(device, "ext4", make_options, mount_options, &why);

	if (!directory)
		SKIP("%s", why);
	return directory;
}

const char *need_ext4(uint64_t nbytes, unsigned sector_bytes)
{
	return need_file_system("ext4", nbytes, sector_bytes);
}

/* ---- Processes with fewer privileges ---- */

int in_child(int (*work)(void *arg), void *arg)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(work(arg));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status))
		fail_msg("the child was killed by signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

void pass_in_child(int (*work)(void *arg), void *arg, const char *skipped)
{
	int status = in_child(work, arg);

	if (status == CHILD_SKIPPED)
		SKIP("%s", skipped);
	assert_int_equal(status, CHILD_OK);
}

static int filter_syscall(long number, uint32_t action)
{
	/* Checking the number alone suffices, since the process makes calls of one architecture. */
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, action),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = COUNT(filter), .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program))
		return -errno;
	return 0;
}

int deny_syscall(long number, int error)
{
	return filter_syscall(number, SECCOMP_RET_ERRNO | (uint32_t)error);
}

int kill_on_syscall(long number)
{
	return filter_syscall(number, SECCOMP_RET_KILL_THREAD);
}

int limit_memlock(uint64_t nbytes)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {{0}};
	struct rlimit limit;

	if (getrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capget, &header, data))
		return -errno;
	limit.rlim_cur = nbytes;
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~(uint32_t)CAP_TO_MASK(CAP_IPC_LOCK);
	data[CAP_TO_INDEX(CAP_IPC_LOCK)].permitted &= ~(uint32_t)CAP_TO_MASK(CAP_IPC_LOCK);
	/* The hard limit stays: raising it again would need a privilege. */
	if (limit.rlim_max < nbytes)
		limit.rlim_max = nbytes;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capset, &header, data))
		return -errno;
	return 0;
}

static int lock_without_right(void *arg)
{
	static char page[4096];

	(void)arg;
	return limit_memlock(0) || mlock(page, sizeof(page)) ? CHILD_OK : CHILD_WRONG;
}

bool mlock_locks(void)
{
	return in_child(lock_without_right, NULL) == CHILD_OK;
}

bool thread_sleeps(pid_t tid)
{
	char path[64], line[128] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof(line), file));
	fclose(file);
	/* "TID (NAME) STATE ..." */
	assert_non_null(strrchr(line, ')'));
	return strrchr(line, ')')[2] == 'S';
}
