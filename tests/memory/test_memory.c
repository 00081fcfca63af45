/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned memory of callers: locked or an error that names the limit, known to the whole process,
 * and registered with an aio for as long as both live.
 */
#include <pthread.h>

#include "base/memory/huge_map.h"
#include "config/config.h"
#include "support/support.h"

#define KIB 1024ull
#define MIB (1024 * KIB)

static struct nvs_error error = {.size = sizeof(error)};

static void *alloc(struct nvs_aio *aio, size_t nbytes, const char *path)
{
	void *data = NULL;

	SUCCEEDS(nvs_memory_alloc(aio, nbytes, path, &data, &error), &error);
	assert_non_null(data);
	return data;
}

static struct nvs_aio *open_aio(void)
{
	struct nvs_config config;
	struct nvs_aio *aio = NULL;

	config_init(&config);
	SUCCEEDS(nvs_aio_open(&aio, &config, &error), &error);
	return aio;
}

static uint64_t registered_bytes(struct nvs_aio *aio)
{
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	assert_int_equal(nvs_aio_get_stats(aio, &stats), 0);
	return stats.registered_bytes;
}

TEST(memory_is_whole_pages_of_zeros)
{
	static const size_t lengths[] = {1, 4095, 4097, 300000, 3 * MIB + 1};

	for (size_t i = 0; i < COUNT(lengths); i++) {
		size_t nbytes = round_to_pages(lengths[i]);
		char *data = alloc(NULL, lengths[i], NULL);

		assert_int_equal((uintptr_t)data % page_bytes(), 0);
		for (size_t k = 0; k < nbytes; k++)
			assert_int_equal(data[k], 0);
		memset(data, 1, nbytes);
		assert_int_equal(nvs_memory_free(data), 0);
	}
}

static int lock_under_a_limit(void *arg)
{
	void *data = &error;

	(void)arg;
	if (limit_memlock(5 * MIB))
		return CHILD_SKIPPED;
	EXPECT(nvs_memory_alloc(NULL, 64 * MIB, NULL, &data, &error) == -ENOMEM);
	EXPECT(!data && error.code == -ENOMEM && !strcmp(error.subject, "nbytes"));
	EXPECT(strstr(error.text, "nvs_memory_alloc needs 64 MiB (67108864 bytes)"));
	EXPECT(strstr(error.text, "limit is 5 MiB"));
	EXPECT(strstr(error.text, "ulimit -l unlimited") && strstr(error.text, "allocate less"));
	EXPECT(!strstr(error.text, "buffer_count") && !strstr(error.text, "pin_memory"));
	EXPECT(!nvs_memory_alloc(NULL, 4 * MIB, NULL, &data, &error));
	EXPECT(nvs_memory_alloc(NULL, 2 * MIB, NULL, &(void *){NULL}, &error) == -ENOMEM);
	EXPECT(!nvs_memory_free(data));
	EXPECT(!nvs_memory_alloc(NULL, 2 * MIB, NULL, &data, &error));
	EXPECT(!nvs_memory_free(data));
	return CHILD_OK;
}

TEST(memory_is_locked_or_the_error_names_limit_need_and_remedy)
{
	if (!mlock_locks())
		SKIP("mlock does nothing here, as under a sanitizer");
	pass_in_child(lock_under_a_limit, NULL, "the memlock limit can't be set here");
}

TEST(memory_beyond_the_machine_is_an_error)
{
	static const size_t lengths[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 50};
	void *data;

	for (size_t i = 0; i < COUNT(lengths); i++) {
		assert_int_equal(nvs_memory_alloc(NULL, lengths[i], NULL, &data, &error), -ENOMEM);
		assert_non_null(strstr(error.text, "allocate less"));
		assert_null(data);
	}
}

TEST(a_path_that_has_no_drive_is_refused_and_not_waited_for)
{
	const char *path = path_in(temp_directory(), "fifo");
	void *data = &error;
	int fd;

	assert_int_equal(mkfifo(path, 0600), 0);
	/* A FIFO that is open for writing blocks nobody, so that a library that opens it
	 * returns. */
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(nvs_memory_alloc(NULL, 1, path, &data, &error), -EINVAL);
	assert_says(error.text, "neither a directory nor a file nor a block device");
	assert_string_equal(error.subject, path);
	assert_null(data);
	close(fd);
	assert_int_equal(nvs_memory_alloc(NULL, 1, "/dev/null", &data, &error), -EINVAL);
}

TEST(any_part_of_one_allocation_is_pinned)
{
	size_t nbytes = 16 * page_bytes();
	char *data = alloc(NULL, nbytes, NULL), local;

	assert_true(nvs_memory_is_pinned(data, nbytes));
	assert_true(nvs_memory_is_pinned(data, 0));
	assert_true(nvs_memory_is_pinned(data + 17, nbytes - 17));
	assert_true(nvs_memory_is_pinned(data + nbytes - 1, 1));
	assert_false(nvs_memory_is_pinned(data, nbytes + 1));
	assert_false(nvs_memory_is_pinned(data + 1, SIZE_MAX));
	assert_false(nvs_memory_is_pinned(data - 1, 1));
	assert_false(nvs_memory_is_pinned(data + nbytes, 1));
	assert_false(nvs_memory_is_pinned(&local, 1));
	assert_false(nvs_memory_is_pinned(NULL, 0));
	assert_int_equal(nvs_memory_free(data), 0);
	assert_false(nvs_memory_is_pinned(data, 1));
}

TEST(a_pointer_that_is_no_allocation_frees_nothing)
{
	char *data = alloc(NULL, MIB, NULL), local;

	assert_int_equal(nvs_memory_free(NULL), 0);
	assert_int_equal(nvs_memory_free(data + 1), -EINVAL);
	assert_int_equal(nvs_memory_free(data + page_bytes()), -EINVAL);
	assert_int_equal(nvs_memory_free(&local), -EINVAL);
	assert_true(nvs_memory_is_pinned(data, MIB));
	memset(data, 1, MIB);
	assert_int_equal(nvs_memory_free(data), 0);
	assert_int_equal(nvs_memory_free(data), -EINVAL);
}

TEST(arguments_that_are_wrong_are_refused)
{
	void *data = &error;

	assert_int_equal(nvs_memory_alloc(NULL, MIB, NULL, NULL, &error), -EINVAL);
	assert_int_equal(nvs_memory_alloc(NULL, 0, NULL, &data, &error), -EINVAL);
	assert_int_equal(nvs_memory_alloc(NULL, MIB, "/nonexistent/drive", &data, &error), -ENOENT);
	assert_says(error.text, "/nonexistent/drive");
	assert_null(data);
}

TEST(memory_is_had_wherever_the_path_is)
{
	assert_int_equal(nvs_memory_free(alloc(NULL, MIB, "/proc")), 0);
	assert_int_equal(nvs_memory_free(alloc(NULL, MIB, "/var/tmp")), 0);
}

TEST(memory_is_registered_until_it_is_freed)
{
	struct nvs_aio *aio = open_aio();
	uint64_t before = registered_bytes(aio);
	void *data = alloc(aio, 3 * MIB, NULL);
	uint64_t with = registered_bytes(aio);

	assert_int_equal(nvs_aio_register_memory(aio, data, MIB), 0);
	assert_int_equal(nvs_memory_free(data), 0);
	assert_int_equal(registered_bytes(aio), before);
	nvs_aio_close(aio);
	if (with == before)
		SKIP("the I/O engine registers no memory here");
	assert_int_equal(with, before + 3 * MIB);
}

TEST(memory_outlives_its_aio)
{
	struct nvs_aio *aio = open_aio();
	char *first = alloc(aio, MIB, NULL), *second = alloc(aio, MIB, NULL);

	assert_int_equal(nvs_memory_free(second), 0);
	nvs_aio_close(aio);
	memset(first, 1, MIB);
	assert_true(nvs_memory_is_pinned(first, MIB));
	/* An aio at the same address is another one. */
	aio = open_aio();
	assert_int_equal(nvs_memory_free(first), 0);
	nvs_aio_close(aio);
}

TEST(transfers_use_any_part_of_it)
{
	const char *path = path_in(temp_directory(), "data");
	char *data, *back = malloc(MIB);
	struct nvs_aio *aio = open_aio();
	struct nvs_request *request;
	struct nvs_file *file;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && back);
	data = alloc(aio, 2 * MIB, path);
	for (size_t i = 0; i < 2 * MIB; i++)
		data[i] = (char)(i * 7 + i / 4096);
	SUCCEEDS(nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &file, &error), &error);
	for (size_t at = 0; at < 3; at++) {
		const char *from = data + at * 12345;

		for (int reads = 0; reads < 2; reads++) {
			SUCCEEDS(reads ? nvs_aio_pread(aio, file, back, MIB, 0, &request, &error)
				       : nvs_aio_pwrite(aio, file, from, MIB, 0, &request, &error),
				 &error);
			SUCCEEDS(nvs_aio_wait(aio, &request, 1, -1, &error), &error);
			nvs_request_close(request);
		}
		assert_memory_equal(back, from, MIB);
	}
	nvs_file_close(file);
	assert_int_equal(nvs_memory_free(data), 0);
	nvs_aio_close(aio);
	close(fd);
	free(back);
}

/* ---- Threads and processes ---- */

static int know_own_memory(void *data)
{
	const size_t nbytes = 8192;

	EXPECT(!nvs_memory_is_pinned(data, nbytes) && nvs_memory_free(data) == -EINVAL);
	EXPECT(!nvs_memory_alloc(NULL, nbytes, NULL, &data, NULL));
	EXPECT(nvs_memory_is_pinned(data, nbytes) && !nvs_memory_free(data));
	return CHILD_OK;
}

TEST(a_child_knows_only_its_own_memory)
{
	struct nvs_aio *aio = open_aio();
	void *data = alloc(aio, 8192, NULL);

	assert_int_equal(in_child(know_own_memory, data), CHILD_OK);
	assert_true(nvs_memory_is_pinned(data, 8192));
	assert_int_equal(nvs_memory_free(data), 0);
	nvs_aio_close(aio);
}

static void *alloc_often(void *arg)
{
	void *data;

	for (size_t i = 1; i <= 20; i++) {
		if (nvs_memory_alloc(arg, i * 4096, NULL, &data, NULL) ||
		    !nvs_memory_is_pinned(data, i * 4096) || nvs_memory_free(data))
			abort();
	}
	return NULL;
}

TEST(threads_allocate_and_free_at_once)
{
	struct nvs_aio *aio = open_aio();
	pthread_t threads[4];

	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, alloc_often, aio), 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	nvs_aio_close(aio);
}

EACH_TEST(NULL, cleanup)
