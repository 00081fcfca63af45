/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the store: a directory under build/tmp, an aio, a log that records its
 * messages, and short functions that open a store and look at its files.
 */
#ifndef TESTS_STORE_STORE_FIXTURE_H
#define TESTS_STORE_STORE_FIXTURE_H

#include <signal.h>

#include "aio/aio.h"
#include "store/internal.h"
#include "support/submit.h"
#include "support/support.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define MIB(n)	      ((uint64_t)(n) << 20)
#define DATA	      "nvswap/rank0/data"

static struct nvs_aio *aio;
static char root[64];	     /* the test's directory, relative to the working directory */
static char log_text[65536]; /* all messages logged in this test, one a line */
static struct nvs_error error = {.size = sizeof(error)};

static inline void remember(void *arg, enum nvs_log_level level, const char *text)
{
	size_t length = strlen(log_text);

	(void)arg;
	snprintf(log_text + length, sizeof(log_text) - length, "%d %s\n", (int)level, text);
}

static const struct nvs_log test_log = {.fn = remember};

static inline int open_aio(void **state)
{
	const struct aio_config config = {.block_size = 1 << 20,
					  .queue_depth = 4,
					  .thread_count = 1,
					  .overlap_events = true,
					  .ioengine = NVS_IOENGINE_POSIX};

	(void)state;
	return aio_open_with(&aio, &config, NULL, NULL, NULL, NULL);
}

static inline int close_aio(void **state)
{
	(void)state;
	nvs_aio_close(aio);
	return 0;
}

/* Makes the root and its directories a, b, c and d, for stores with several paths. */
static inline int make_root(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "%s", temp_directory());
	log_text[0] = 0;
	error = (struct nvs_error){.size = sizeof(error)};
	for (const char *name = "abcd"; *name; name++) {
		char path[80];

		snprintf(path, sizeof(path), "%s/%c", root, *name);
		if (mkdir(path, 0700))
			return -1;
	}
	return 0;
}

/* Returns a path in the test's directory, valid until the fourth call after this one. */
static inline const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline const char *at(const char *format, ...)
{
	static char paths[4][512];
	static unsigned next;
	char *path = paths[next++ % 4], *end = path + snprintf(path, 512, "%s/", root);
	va_list args;

	va_start(args, format);
	vsnprintf(end, (size_t)(path + 512 - end), format, args);
	va_end(args);
	return path;
}

/* Options of try_open(): `paths` are in the test's directory, which is the default path. */
struct how {
	const char *paths[4];
	unsigned npaths;
	uint32_t rank;
	uint64_t stripe_size;
	bool stripe_unset;
	bool keep, read_only, rollback, in_memory, absolute, optimizer;
};

static inline int try_open(struct how how, struct store **store)
{
	char paths[4][512];
	const char *pointers[4];
	struct store_options options = {.paths = pointers,
					.npaths = how.npaths ? how.npaths : !how.in_memory,
					.rank = how.rank,
					.optimizer = how.optimizer,
					.stripe_size = how.stripe_unset	 ? 0
						       : how.stripe_size ? how.stripe_size
									 : 65536,
					.keep = how.keep,
					.read_only = how.read_only,
					.rollback = how.rollback,
					.log = &test_log};

	for (unsigned i = 0; i < 4; i++) {
		snprintf(paths[i], sizeof(paths[i]), "%s%s%s", how.absolute ? "" : root,
			 how.absolute ? "" : "/", how.paths[i] ? how.paths[i] : "");
		pointers[i] = paths[i];
	}
	*store = NULL;
	return store_open(store, aio, &options, &error);
}

static inline struct store *must_open(struct how how)
{
	struct store *store;
	int rc = try_open(how, &store);

	if (rc)
		print_error("%s\n", error.text);
	assert_int_equal(rc, 0);
	return store;
}

/* For a file whose tests have one store at a time: `store`, closed after each test that passes. */
#define ONE_STORE                                                                                  \
	static struct store *store;                                                                \
	static void close_one_store(void)                                                          \
	{                                                                                          \
		shut(&store);                                                                      \
	}                                                                                          \
	AFTER_SUCCESS(close_one_store)

/* Closes it, if it is open. */
static inline void shut(struct store **store)
{
	if (*store)
		store_close(*store);
	*store = NULL;
}

/* The open must fail with this code and with `said` in the message. */
static inline void must_not_open(struct how how, int code, const char *said)
{
	struct store *store;
	int rc = try_open(how, &store);

	if (rc != code || !strstr(error.text, said))
		print_error("%d (wanted %d, \"%s\"): %s\n", rc, code, said, error.text);
	assert_int_equal(rc, code);
	assert_int_equal(error.code, code);
	assert_non_null(strstr(error.text, said));
	assert_null(store);
}

static inline mode_t mode_of(const char *path)
{
	struct stat st;

	return lstat(path, &st) ? 0 : st.st_mode;
}

static inline uint64_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

/* Of the data of a member of an open store. */
static inline uint64_t data_bytes(const struct store *store, unsigned member)
{
	struct stat st;

	assert_int_equal(fstat(store->members[member].fd, &st), 0);
	return (uint64_t)st.st_size;
}

/* Whether the first member's named file is the one that it has locked. */
static inline bool locks_its_name(const struct store *store, const char *path)
{
	struct stat named, held;

	return !stat(path, &named) && !fstat(member_named_fd(&store->members[0]), &held) &&
	       named.st_ino == held.st_ino;
}

static inline size_t read_file(const char *path, void *data, size_t nbytes, uint64_t offset)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	assert_true(fd >= 0);
	n = pread(fd, data, nbytes, (off_t)offset);
	close(fd);
	assert_true(n >= 0);
	return (size_t)n;
}

/* Creates the file if it does not exist. */
static inline void write_file(const char *path, const void *data, size_t nbytes, uint64_t offset)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, nbytes, (off_t)offset), nbytes);
	close(fd);
}

/* Moves tensor data to or from the store by a transfer. */
static inline void move(struct store *store, enum nvs_direction direction, void *data,
			uint64_t nbytes, uint64_t offset)
{
	struct transfer transfer = {.file = store_file(store),
				    .direction = direction,
				    .data = data,
				    .nbytes = nbytes,
				    .offset = offset},
			*one = &transfer;

	assert_int_equal(submit_all(aio, &one, 1, &error), 0);
	assert_int_equal(await_all(aio, &one, 1, -1, &error), 0);
}

/* The entry of a tensor of `nbytes`, written, with two new extents. */
static inline struct store_entry reserve_entry(struct store *store, uint64_t nbytes)
{
	const uint64_t both[2] = {nbytes, nbytes};
	uint64_t offsets[2];

	assert_int_equal(store_reserve(store, both, 2, offsets, &error), 0);
	return (struct store_entry){.name = "weight",
				    .dtype = NVS_U8,
				    .numel = nbytes,
				    .nbytes = nbytes,
				    .offset = offsets[0],
				    .spare = offsets[1],
				    .written = true};
}

static inline void fill(uint8_t *data, size_t nbytes, uint64_t seed)
{
	random_fill(&seed, data, nbytes);
}

#endif
