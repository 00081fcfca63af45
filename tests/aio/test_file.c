/* SPDX-License-Identifier: Apache-2.0 */
/* Files for transfers: paths, descriptors of the caller, and refused arguments. */
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>

#include "aio/aio.h"
#include "support/support.h"

static const char text[] = "written at an offset";

static struct nvs_error error = {.size = sizeof(error)};

static struct nvs_aio *aio;

static int open_aio(void **state)
{
	const struct aio_config config = {
		.block_size = 4096,
		.queue_depth = 2,
		.thread_count = 1,
		.overlap_events = true,
		.ioengine = NVS_IOENGINE_POSIX,
	};

	(void)state;
	SUCCEEDS(aio_open_with(&aio, &config, NULL, NULL, NULL, &error), &error);
	return 0;
}

static int close_aio(void **state)
{
	return nvs_aio_close(aio) ? -1 : cleanup(state);
}

static void write_and_read(struct nvs_file *file, uint64_t offset)
{
	char back[sizeof(text)] = "";

	SUCCEEDS(nvs_aio_pwrite(aio, file, text, sizeof(text), offset, NULL, &error), &error);
	SUCCEEDS(nvs_aio_wait_all(aio, -1, NULL, &error), &error);
	SUCCEEDS(nvs_aio_pread(aio, file, back, sizeof(text), offset, NULL, &error), &error);
	SUCCEEDS(nvs_aio_wait_all(aio, -1, NULL, &error), &error);
	assert_string_equal(back, text);
}

TEST(a_descriptor_stays_the_callers)
{
	const int kinds[] = {0, O_APPEND, O_DIRECT};
	const char *directory = temp_directory();

	for (unsigned i = 0; i < COUNT(kinds); i++) {
		const char *path = path_in(directory, "file");
		int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | kinds[i], 0600);
		struct nvs_file *file;
		struct stat st;

		if (fd < 0 && kinds[i] == O_DIRECT)
			continue;
		assert_true(fd >= 0);
		/* The file needs no name. */
		assert_int_equal(unlink(path), 0);
		SUCCEEDS(nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &file, &error), &error);
		write_and_read(file, 5000);
		write_and_read(file, 100);
		nvs_file_close(file);
		assert_int_equal(fstat(fd, &st), 0);
		assert_int_equal(st.st_size, 5000 + sizeof(text));
		assert_int_equal(fcntl(fd, F_GETFL) & (O_APPEND | O_DIRECT), kinds[i]);
		SUCCEEDS(nvs_file_from_fd(aio, fd, NVS_FILE_WRITE | NVS_FILE_BUFFERED, &file,
					  &error),
			 &error);
		close(fd);
		assert_false(nvs_file_direct(file));
		write_and_read(file, 77);
		nvs_file_close(file);
	}
}

TEST(a_descriptor_that_cannot_be_used_is_refused)
{
	const char *directory = temp_directory(), *path = path_in(directory, "file");
	struct nvs_file *file;
	int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0600), path_fd, pipes[2];

	assert_int_equal(nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &file, &error), -EINVAL);
	assert_says(error.text, "must be open for reading and writing");
	assert_says(error.text, path);
	assert_int_equal(nvs_file_from_fd(aio, fd, NVS_FILE_CREATE, &file, &error), -EINVAL);
	SUCCEEDS(nvs_file_from_fd(aio, fd, 0, &file, &error), &error);
	nvs_file_close(file);
	path_fd = open(path, O_PATH | O_CLOEXEC);
	assert_int_equal(nvs_file_from_fd(aio, path_fd, 0, &file, &error), -EINVAL);
	assert_says(error.text, "O_PATH");
	close(path_fd);
	close(fd);
	assert_int_equal(nvs_file_from_fd(aio, -1, 0, &file, &error), -EBADF);
	assert_int_equal(nvs_file_from_fd(aio, INT_MAX, 0, &file, &error), -EBADF);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	assert_int_equal(nvs_file_from_fd(aio, pipes[0], 0, &file, &error), -EINVAL);
	assert_says(error.text, "neither a file nor a block device");
	close(pipes[0]);
	close(pipes[1]);
	fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(nvs_file_from_fd(aio, fd, 0, &file, &error), -EISDIR);
	close(fd);
}

TEST(a_fifo_is_refused_without_blocking)
{
	const char *path = path_in(temp_directory(), "fifo");
	struct nvs_file *file;

	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(nvs_file_open(aio, path, 0, &file, &error), -EINVAL);
	assert_says(error.text, path);
	assert_int_equal(nvs_file_open(aio, path, NVS_FILE_WRITE, &file, &error), -EINVAL);
	assert_int_equal(nvs_file_open(aio, temp_directory(), 0, &file, &error), -EISDIR);
}

TEST(a_file_that_the_kernel_makes_up_is_refused)
{
	static const char *const paths[] = {"/proc/self/stat", "/sys/kernel/mm/transparent_hugepage"
							       "/enabled"};
	struct nvs_file *file;

	for (unsigned i = 0; i < COUNT(paths); i++) {
		int fd = open(paths[i], O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			continue;
		assert_int_equal(nvs_file_open(aio, paths[i], 0, &file, &error), -EINVAL);
		assert_says(error.text, paths[i]);
		assert_says(error.text, i ? "sysfs" : "proc");
		assert_says(error.text, "use read(2)");
		assert_int_equal(nvs_file_from_fd(aio, fd, 0, &file, &error), -EINVAL);
		assert_says(error.text, i ? "enabled" : "/stat");
		close(fd);
	}
}

/* Also where the limit is no multiple of what direct I/O needs. */
TEST(a_write_beyond_the_limit_on_file_sizes_names_it)
{
	const struct rlimit limits[] = {{3 * 65536, RLIM_INFINITY},
					{3 * 65536 + 777, RLIM_INFINITY}};
	const char *path = path_in(temp_directory(), "limited");
	char *data = aligned_alloc(4096, 4 * 65536);
	struct rlimit before;

	assert_non_null(data);
	memset(data, 1, 4 * 65536);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
	for (size_t i = 0; i < COUNT(limits); i++) {
		struct nvs_file *file;

		SUCCEEDS(nvs_file_open(aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &file, &error),
			 &error);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &limits[i]), 0);
		SUCCEEDS(nvs_aio_pwrite(aio, file, data, 4 * 65536, 0, NULL, &error), &error);
		assert_int_equal(nvs_aio_wait_all(aio, -1, NULL, &error), -EFBIG);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
		assert_non_null(strstr(error.text, "ulimit -f"));
		nvs_file_close(file);
	}
	signal(SIGXFSZ, SIG_DFL);
	free(data);
}

EACH_TEST(open_aio, close_aio)
