/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store in directories and in host memory: files, refused arguments, the lock, reserved space.
 * test_store_kept.c has kept stores, test_store_drives.c devices.
 */
#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "store/store_fixture.h"
#include "support/inject.h"

ONE_STORE

/* ---- System calls of the store, replaced so that a test can act or fail in them ---- */

static void (*before_flock)(void);
static bool drive_is_full;
static int tmpfile_errno; /* of making a file without a name; 0: it is made */

int openat(int fd, const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	/* O_TMPFILE contains O_DIRECTORY. */
	mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
	va_end(args);
	if ((flags & O_TMPFILE) == O_TMPFILE && tmpfile_errno) {
		errno = tmpfile_errno;
		return -1;
	}
	return (int)syscall(SYS_openat, fd, path, flags, mode);
}

int flock(int fd, int operation)
{
	void (*act)(void) = before_flock;

	if (act) {
		before_flock = NULL;
		act();
	}
	return (int)syscall(SYS_flock, fd, operation);
}

/* A full file system can extend the file before it reports ENOSPC. */
int posix_fallocate(int fd, off_t offset, off_t nbytes)
{
	if (drive_is_full)
		return ftruncate(fd, offset + nbytes / 2) ? errno : ENOSPC;
	return fallocate(fd, 0, offset, nbytes) ? errno : 0;
}

/* ---- Files of a store ---- */

TEST(files_are_private)
{
	mode_t mask = umask(0);

	store = must_open((struct how){.keep = true});
	umask(mask);
	assert_int_equal(mode_of(at("nvswap")), S_IFDIR | 0700);
	assert_int_equal(mode_of(at("nvswap/rank0")), S_IFDIR | 0700);
	assert_int_equal(mode_of(at(DATA)), S_IFREG | 0600);
	assert_int_equal(mode_of(at("nvswap/rank0/manifest.0")), S_IFREG | 0600);
	assert_int_equal(mode_of(at("nvswap/rank0/manifest.1")), S_IFREG | 0600);
}

TEST(descriptors_close_on_exec)
{
	DIR *directory = opendir("/proc/self/fd");
	unsigned seen = 0;

	store = must_open((struct how){.keep = true});
	assert_non_null(directory);
	for (struct dirent *entry; (entry = readdir(directory));) {
		char link[64], target[512] = "";

		snprintf(link, sizeof(link), "/proc/self/fd/%.20s", entry->d_name);
		if (readlink(link, target, sizeof(target) - 1) < 0 || !strstr(target, root))
			continue;
		seen++;
		assert_true(fcntl(atoi(entry->d_name), F_GETFD) & FD_CLOEXEC);
	}
	closedir(directory);
	/*
	 * Three directories, the data file, two manifests in two copies, and a second descriptor of
	 * the data for direct I/O.
	 */
	assert_int_equal(seen, store_direct(store) ? 9 : 8);
}

TEST(a_missing_path_or_one_named_twice_is_refused_and_nothing_made)
{
	must_not_open((struct how){.paths = {"new"}}, -ENOENT, "/new does not exist");
	assert_non_null(strstr(error.text, "is the drive mounted?"));
	assert_non_null(strstr(error.text, "mkdir -p '"));
	assert_int_equal(mode_of(at("new")), 0);
	write_file(at("file"), "x", 1, 0);
	must_not_open((struct how){.paths = {"file"}}, -ENOTDIR, "neither a directory nor");
	must_not_open((struct how){.paths = {"a", "a/b"}, .npaths = 2}, -ENOENT, "a/b does not");
	must_not_open((struct how){.paths = {"a", "a"}, .npaths = 2}, -EINVAL, "are the same");
	assert_int_equal(mode_of(at("a/nvswap")), 0);
}

TEST(nothing_remains_of_a_store_that_is_not_kept)
{
	struct store *other = must_open((struct how){.rank = 7});

	store = must_open((struct how){.rank = 0});
	shut(&store);
	assert_int_equal(mode_of(at("nvswap/rank0")), 0);
	assert_int_equal(mode_of(at("nvswap/rank7/data")), S_IFREG | 0600);
	store_close(other);
	assert_int_equal(mode_of(at("nvswap")), 0);
	assert_string_equal(log_text, "");
}

TEST(links_and_files_of_other_kinds_are_refused_at_each_component)
{
	static const struct {
		enum { LINK, TWIN, FIFO, DIRECTORY } kind;
		const char *name, *said;
	} cases[] = {
		{LINK, "nvswap", "symbolic link"},
		{LINK, "nvswap/rank0", "symbolic link"},
		{FIFO, "nvswap/rank0", "symbolic link or no directory"},
		{LINK, DATA, "symbolic link"},
		{TWIN, DATA, "hard link"},
		{FIFO, DATA, "not a plain file"},
		{DIRECTORY, DATA, "not a plain file"},
		{LINK, "nvswap/rank0/manifest.1", "manifest.1 is a symbolic link"},
		{FIFO, "nvswap/rank0/manifest.0", "manifest.0 is not a plain file"},
	};
	char target[PATH_MAX];

	/* A FIFO is not waited for. */
	alarm(120);
	for (size_t i = 0; i < LENGTH(cases); i++) {
		const char *name = at("%s", cases[i].name), *elsewhere = at("elsewhere");

		store_close(must_open((struct how){.keep = true}));
		assert_int_equal(rename(name, elsewhere), 0);
		assert_non_null(realpath(elsewhere, target));
		assert_int_equal(cases[i].kind == LINK	 ? symlink(target, name)
				 : cases[i].kind == TWIN ? link(target, name)
				 : cases[i].kind == FIFO ? mkfifo(name, 0600)
							 : mkdir(name, 0700),
				 0);
		must_not_open((struct how){.keep = true}, -EMEDIUMTYPE, cases[i].said);
		assert_int_equal(remove_tree(at("nvswap")), 0);
		assert_int_equal(remove_tree(at("elsewhere")), 0);
	}
	alarm(0);
}

TEST(files_of_another_user_are_refused)
{
	if (geteuid() != 0) {
		print_message("only root can change the owner of a file\n");
		skip();
	}
	assert_int_equal(mkdir(at("nvswap"), 0700), 0);
	assert_int_equal(chown(at("nvswap"), 65534, 65534), 0);
	must_not_open((struct how){.rank = 0}, -EMEDIUMTYPE, "belongs to another user");
	assert_int_equal(chown(at("nvswap"), 0, 0), 0);
	assert_int_equal(mkdir(at("nvswap/rank0"), 0700), 0);
	write_file(at(DATA), "", 0, 0);
	assert_int_equal(chown(at(DATA), 65534, 65534), 0);
	must_not_open((struct how){.rank = 0}, -EMEDIUMTYPE, "belongs to another user");
}

/* ---- The lock ---- */

static int is_locked_out(void *arg)
{
	struct store *second;

	(void)arg;
	EXPECT(try_open((struct how){.rank = 3}, &second) == -EBUSY);
	EXPECT(strstr(error.text, "nvswap/rank3/data") && strstr(error.text, "\"rank\": N"));
	return CHILD_OK;
}

TEST(second_process_is_locked_out)
{
	store = must_open((struct how){.rank = 3});
	assert_int_equal(in_child(is_locked_out, NULL), CHILD_OK);
	must_not_open((struct how){.rank = 3}, -EBUSY, "has locked the store at");
	store_close(must_open((struct how){.rank = 4}));
	shut(&store);
	store_close(must_open((struct how){.rank = 3}));
}

struct rival {
	pthread_t thread;
	atomic_int *owners;
	unsigned opened, refused;
};

/* Opens and closes one store 100 times, concurrently with other threads. */
static void *rival_run(void *arg)
{
	struct rival *rival = arg;
	const char *path = root;

	while (rival->opened < 100) {
		struct store *mine = NULL;
		struct store_options options = {.paths = &path, .npaths = 1, .stripe_size = 65536};
		int rc = store_open(&mine, aio, &options, NULL);

		rival->refused += rc == -EBUSY;
		MUST(!rc || rc == -EBUSY);
		if (rc) {
			sched_yield();
			continue;
		}
		rival->opened++;
		MUST(atomic_fetch_add(rival->owners, 1) == 0);
		MUST(locks_its_name(mine, store_path(mine)));
		atomic_fetch_sub(rival->owners, 1);
		shut(&mine);
	}
	return NULL;
}

TEST(closing_and_opening_at_once_never_gives_two_owners)
{
	atomic_int owners = 0;
	struct rival rivals[3] = {{.owners = &owners}, {.owners = &owners}, {.owners = &owners}};
	unsigned opened = 0, refused = 0;

	for (size_t i = 0; i < LENGTH(rivals); i++)
		assert_int_equal(pthread_create(&rivals[i].thread, NULL, rival_run, &rivals[i]), 0);
	for (size_t i = 0; i < LENGTH(rivals); i++)
		pthread_join(rivals[i].thread, NULL);
	for (size_t i = 0; i < LENGTH(rivals); i++) {
		opened += rivals[i].opened;
		refused += rivals[i].refused;
	}
	print_message("opened %u times, refused %u times\n", opened, refused);
	assert_int_equal(opened, 100 * LENGTH(rivals));
	assert_int_equal(mode_of(at("nvswap")), 0);
}

static void replace_data(void)
{
	if (rename(at(DATA), at("old")) == 0)
		write_file(at(DATA), "", 0, 0);
}

static void remove_all(void)
{
	remove_tree(at("nvswap"));
}

/* The previous owner can do this between the open and the lock of the file. */
TEST(a_file_unlinked_before_it_is_locked_is_not_the_store)
{
	static void (*const acts[])(void) = {replace_data, remove_all};

	for (size_t i = 0; i < LENGTH(acts); i++) {
		before_flock = acts[i];
		store = must_open((struct how){.rank = 0});
		assert_null(before_flock);
		assert_true(locks_its_name(store, at(DATA)));
		must_not_open((struct how){.rank = 0}, -EBUSY, "has locked the store at");
		shut(&store);
	}
}

TEST(data_has_a_name_only_if_it_is_kept_or_must_have_one)
{
	store = must_open((struct how){.keep = true});
	assert_int_equal(size_of(at(DATA)), LABEL_AREA_BYTES);
	shut(&store);
	store = must_open((struct how){.rank = 1});
	if (store->members[0].lock_fd >= 0)
		assert_int_equal(size_of(at("nvswap/rank1/data")), 0);
	shut(&store);
	tmpfile_errno = EMFILE;
	must_not_open((struct how){.rank = 1}, -EMFILE,
		      "too many open files: raise the limit (ulimit -n)");
	assert_int_equal(mode_of(at("nvswap/rank1")), 0);
	tmpfile_errno = EOPNOTSUPP;
	store = must_open((struct how){.rank = 1});
	tmpfile_errno = 0;
	assert_int_equal(size_of(at("nvswap/rank1/data")), LABEL_AREA_BYTES);
	shut(&store);
	assert_int_equal(mode_of(at("nvswap/rank1")), 0);
}

TEST(data_without_a_name_needs_no_label)
{
	static uint8_t label[LABEL_BYTES], none[LABEL_BYTES];
	uint64_t syncs;
	bool nameless;

	inject_fail(INJECT_SYNC, 0, 0, 0);
	store = must_open((struct how){.rank = 1});
	syncs = inject_stop(NULL);
	nameless = store->members[0].lock_fd >= 0;
	assert_int_equal(pread(store->members[0].fd, label, sizeof(label), 0), sizeof(label));
	shut(&store);
	if (!nameless)
		SKIP("the file system has no files without a name");
	assert_int_equal(syncs, 0);
	assert_memory_equal(label, none, sizeof(label));
}

TEST(files_left_by_a_crash_are_reused_and_logged)
{
	static uint8_t label[LABEL_BYTES];
	uint64_t nbytes = MIB(3), offset;

	tmpfile_errno = EOPNOTSUPP;
	store = must_open((struct how){.rank = 0});
	tmpfile_errno = 0;
	assert_int_equal(pread(store->members[0].fd, label, sizeof(label), 0), sizeof(label));
	shut(&store);
	for (int keep = 0; keep < 2; keep++) {
		assert_int_equal(mkdir(at("nvswap"), 0700), 0);
		assert_int_equal(mkdir(at("nvswap/rank0"), 0700), 0);
		write_file(at(DATA), label, sizeof(label), 0);
		write_file(at(DATA), "left", 4, MIB(9));
		log_text[0] = 0;
		store = must_open((struct how){.keep = keep});
		assert_non_null(strstr(log_text, "left by a crashed run"));
		assert_int_equal(data_bytes(store, 0), LABEL_AREA_BYTES);
		assert_true(size_of(at(DATA)) <= LABEL_AREA_BYTES);
		assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
		assert_int_equal(offset, 0);
		shut(&store);
		assert_int_equal(mode_of(at(DATA)) != 0, keep);
	}
}

TEST(files_that_a_crash_left_without_a_label_are_used_again)
{
	assert_int_equal(mkdir(at("nvswap"), 0700), 0);
	assert_int_equal(mkdir(at("nvswap/rank0"), 0700), 0);
	write_file(at(DATA), "", 0, 0);
	assert_int_equal(truncate(at(DATA), (off_t)MIB(3)), 0);
	write_file(at("nvswap/rank0/manifest.0"), "", 0, 0);
	store_close(must_open((struct how){.keep = true}));
}

/* ---- Space ---- */

TEST(extents_lie_side_by_side_in_units)
{
	store = must_open((struct how){.rank = 0});

	const uint32_t unit = store_unit(store);
	const uint64_t nbytes[] = {1, 0, unit - 1, unit, unit + 1, 3ull * unit, 0};
	uint64_t offsets[LENGTH(nbytes)], next = 0;

	assert_true(unit >= UNIT_MIN && unit <= UNIT_MAX && !(unit & (unit - 1)));
	assert_int_equal(store_reserve(store, nbytes, LENGTH(nbytes), offsets, &error), 0);
	for (size_t i = 0; i < LENGTH(nbytes); i++) {
		assert_int_equal(offsets[i], nbytes[i] ? next : 0);
		next += align_up(nbytes[i], unit);
	}
	assert_int_equal(store_bytes(store), next);
	assert_int_equal(data_bytes(store, 0), LABEL_AREA_BYTES + next);
	for (size_t i = 0; i < LENGTH(nbytes); i++)
		store_release(store, offsets[i], nbytes[i]);
	assert_int_equal(extents_free_units(store->extents) * unit, next);
	assert_int_equal(extents_largest(store->extents), extents_free_units(store->extents));
	assert_int_equal(store_reserve(store, NULL, 0, NULL, &error), 0);
}

TEST(space_is_really_reserved)
{
	uint64_t nbytes = MIB(5), offset;
	struct stat st;

	store = must_open((struct how){.rank = 0});
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(fstat(store->members[0].fd, &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 >= MIB(7));
}

struct taken {
	uint64_t offset, nbytes;
};

static int by_offset(const void *a, const void *b)
{
	const struct taken *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void assert_apart(const struct taken *taken, size_t n)
{
	static struct taken sorted[4096];
	uint64_t end = 0, unit = store_unit(store);

	memcpy(sorted, taken, n * sizeof(*taken));
	qsort(sorted, n, sizeof(*sorted), by_offset);
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(sorted[i].offset % unit, 0);
		assert_true(sorted[i].offset >= end);
		end = sorted[i].offset + (sorted[i].nbytes + unit - 1) / unit * unit;
	}
	assert_true(end <= store_bytes(store));
}

TEST(random_histories_never_overlap)
{
	static struct taken taken[4096];
	uint64_t random = 20240611;
	size_t n = 0;

	store = must_open((struct how){.in_memory = true});
	print_message("seed %" PRIu64 "\n", random);
	for (int step = 0; step < 2000; step++) {
		uint64_t nbytes[20], offsets[20];
		size_t count = random_next(&random) % 20;

		for (size_t i = 0; i < count; i++)
			nbytes[i] = 1 + random_next(&random) % 20000;
		assert_int_equal(store_reserve(store, nbytes, count, offsets, &error), 0);
		for (size_t i = 0; i < count; i++)
			taken[n++] = (struct taken){offsets[i], nbytes[i]};
		assert_apart(taken, n);
		while (n > 0 && (n > 4000 || random_next(&random) % 12)) {
			size_t which = random_next(&random) % n;

			store_release(store, taken[which].offset, taken[which].nbytes);
			taken[which] = taken[--n];
		}
	}
}

TEST(an_impossible_size_is_refused_with_numbers)
{
	const uint64_t first = MIB(1);
	const uint64_t batches[][2] = {
		{UINT64_MAX, 1},	{UINT64_MAX, UINT64_MAX},
		{UINT64_MAX / 2, 4096}, {(uint64_t)INT64_MAX, 1 << 20},
		{1ull << 55, 0},
	};
	uint64_t offsets[2], offset;

	store = must_open((struct how){.rank = 0});
	assert_int_equal(store_reserve(store, &first, 1, &offset, &error), 0);
	for (size_t i = 0; i < LENGTH(batches); i++) {
		assert_int_equal(store_reserve(store, batches[i], 2, offsets, &error), -ENOSPC);
		assert_int_equal(data_bytes(store, 0), MIB(3));
		assert_int_equal(store_bytes(store), MIB(1));
		assert_int_equal(extents_free_units(store->extents), 0);
	}
	assert_non_null(strstr(error.text, "no room for another 32 PiB"));
	assert_non_null(strstr(error.text, "the store has 1 MiB already"));
}

TEST(a_limit_on_file_sizes_is_an_error_and_not_a_signal)
{
	uint64_t nbytes = MIB(3), offset;
	struct rlimit was, limit;

	store = must_open((struct how){.rank = 0});
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	limit = was;
	limit.rlim_cur = MIB(3);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);

	int rc = store_reserve(store, &nbytes, 1, &offset, &error);

	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	assert_int_equal(rc, -ENOSPC);
	assert_non_null(strstr(error.text, "ulimit -f"));
	assert_int_equal(data_bytes(store, 0), LABEL_AREA_BYTES);
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
}

TEST(only_a_lack_of_space_has_the_remedy_to_free_some)
{
	static const int codes[] = {ENOSPC, EDQUOT, EROFS, EIO};
	uint64_t nbytes[2] = {MIB(1), MIB(1)}, offsets[2];

	store = must_open((struct how){.keep = true});
	for (size_t i = 0; i < LENGTH(codes); i++) {
		inject_fail(INJECT_SPACE, 1, 1, codes[i]);

		int rc = store_reserve(store, nbytes, 2, offsets, &error);

		inject_stop(NULL);
		assert_int_equal(rc, -codes[i]);
		assert_non_null(strstr(error.text, "manifest.0"));
		assert_true(!strstr(error.text, "free some space") == (i >= 2));
	}
}

TEST(a_file_that_could_not_grow_is_as_long_as_before)
{
	uint64_t nbytes = MIB(4), offset;

	store = must_open((struct how){.paths = {"a", "b"}, .npaths = 2});
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	drive_is_full = true;

	int rc = store_reserve(store, &nbytes, 1, &offset, &error);

	drive_is_full = false;
	assert_int_equal(rc, -ENOSPC);
	assert_int_equal(data_bytes(store, 0), MIB(4));
	assert_int_equal(data_bytes(store, 1), MIB(4));
	assert_int_equal(store_bytes(store), MIB(4));
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(offset, MIB(4));
	shut(&store);
	drive_is_full = true;
	must_not_open((struct how){.paths = {"a", "b"}, .npaths = 2}, -ENOSPC, "has no room");
	drive_is_full = false;
	assert_int_equal(mode_of(at("a/nvswap")), 0);
	assert_int_equal(mode_of(at("b/nvswap")), 0);
}

TEST(stripes_lie_on_members_by_turns)
{
	enum { STRIPE = 65536, ROWS = 5, N = 3 };
	const uint64_t nbytes = (uint64_t)STRIPE * N * ROWS - 70000;
	uint8_t *data = aligned_alloc(4096, STRIPE * N * ROWS), *stripe = malloc(STRIPE);
	uint64_t offset;

	store = must_open((struct how){.paths = {"a", "b", "c"}, .npaths = N});
	assert_non_null(data);
	assert_non_null(stripe);
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	assert_int_equal(store_bytes(store), STRIPE * N * ROWS);
	fill(data, nbytes, 5);
	move(store, NVS_WRITE, data, nbytes, offset);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(data_bytes(store, i), LABEL_AREA_BYTES + STRIPE * ROWS);
	for (unsigned i = 0; i < nbytes / STRIPE; i++) {
		assert_int_equal(pread(store->members[i % N].fd, stripe, STRIPE,
				       LABEL_AREA_BYTES + (off_t)(i / N) * STRIPE),
				 STRIPE);
		assert_memory_equal(stripe, data + (size_t)i * STRIPE, STRIPE);
	}
	shut(&store);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(mode_of(at("%c/nvswap", 'a' + (int)i)), 0);
	free(data);
	free(stripe);
}

TEST(any_number_of_members_and_any_stripe)
{
	static const uint64_t stripes[] = {1, 511, 512, 4096, 65536, 65537, 1 << 20};

	for (unsigned n = 1; n <= 4; n++) {
		for (size_t i = 0; i < LENGTH(stripes); i++) {
			uint64_t nbytes[] = {1, 100000, 3}, offsets[3];
			uint8_t wrote[100000], read[100000];

			store = must_open((struct how){.paths = {"a", "b", "c", "d"},
						       .npaths = n,
						       .stripe_size = stripes[i]});
			assert_int_equal(store_reserve(store, nbytes, 3, offsets, &error), 0);
			assert_true(n == 1 || store_bytes(store) % (n * store->stripe) == 0);
			assert_int_equal(store->stripe % store_unit(store), 0);
			assert_true(store->stripe >= stripes[i]);
			fill(wrote, sizeof(wrote), n);
			move(store, NVS_WRITE, wrote, sizeof(wrote), offsets[1]);
			move(store, NVS_READ, read, sizeof(read), offsets[1]);
			assert_memory_equal(wrote, read, sizeof(read));
			shut(&store);
		}
	}
}

TEST(memory_store_holds_data_and_leaves_no_file)
{
	uint64_t nbytes = 100001, offset;
	uint8_t *data = malloc(nbytes), *back = malloc(nbytes);
	size_t n;

	store = must_open((struct how){.in_memory = true, .keep = true});
	assert_non_null(data);
	assert_non_null(back);
	assert_non_null(strstr(log_text, "\"keep\" is ignored"));
	assert_int_equal(store_reserve(store, &nbytes, 1, &offset, &error), 0);
	fill(data, nbytes, 9);
	move(store, NVS_WRITE, data, nbytes, offset);
	move(store, NVS_READ, back, nbytes, offset);
	assert_memory_equal(data, back, nbytes);
	assert_int_equal(store_commit(store, NULL, 0, NULL, &error), 0);
	assert_int_equal(store_unit(store), 4096);
	store_entries(store, &n);
	assert_int_equal(n, 0);

	uint64_t all = 1ull << 50;

	assert_int_equal(store_reserve(store, &all, 1, &offset, &error), -ENOSPC);
	assert_non_null(strstr(error.text, "host memory has no room for another 1 PiB"));
	shut(&store);
	free(data);
	free(back);
}

EACH_TEST(make_root, cleanup)
AROUND_TESTS(open_aio, close_aio)
