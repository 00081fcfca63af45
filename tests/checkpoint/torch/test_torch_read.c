/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of torch.save, read: those that nvswap writes come back, a damaged byte is never read
 * wrongly, and a pickle that names what is not permitted is refused.
 * python/tests/pytorch/test_torch_files.py has files that torch itself writes.
 */
#include "checkpoint/torch/pickle.h"
#include "checkpoint/weights_fixture.h"
#include "swap/swap_fixture.h"

#define N	3u
#define DAMAGES 2000u

static const uint64_t sizes[N] = {300, 5000, 1};

ONE_ENGINE

/* The file of each test. */
static const char *path;
static struct nvs_tensor *t[N];
static struct nvs_checkpoint_item items[N];

/* Closes the one before. */
static void make(void)
{
	if (f->made)
		fixture_close(f);
	OPEN(f, .pool_bytes = MIB, .verify = true);
	path = path_in(temp_directory(), "model.pt");
	tensors_add(f, "t", sizes, N, t);
	for (unsigned i = 0; i < N; i++) {
		tensor_store(f, t[i], i);
		items[i] = (struct nvs_checkpoint_item){.size = sizeof(items[i]), .tensor = t[i]};
	}
	OK(f, nvs_checkpoint_export(f->engine, items, N, path, NULL, &f->error));
}

/* Opens and imports the file; 0, or the error of either. */
static int read_back(void)
{
	struct nvs_checkpoint *checkpoint;
	int rc = nvs_checkpoint_open(&checkpoint, path, &f->error);

	if (rc)
		return rc;
	rc = nvs_checkpoint_import(f->engine, checkpoint, items, N, &f->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

TEST(data_without_its_checksum_is_not_imported)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_checkpoint *checkpoint;

	make();
	OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
	assert_int_equal(nvs_checkpoint_get(checkpoint, 1, &tensor), 0);
	flip(path, (off_t)(tensor.offset + tensor.nbytes - 1), 1);
	nvs_checkpoint_close(checkpoint);
	tensor_store(f, t[1], 101);
	expect_error(f, read_back(), -EBADMSG, "t1");
	tensor_compare(f, t[1], 101);
}

/* A tensor of bytes in a pickle: a name of one letter, the storage, and numbers of two bytes
 * each. */
#define VIEW(name, storage, storage_bytes, offset, numel)                                          \
	"X\x01\0\0\0" name "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\n"       \
	"ByteStorage\nX\x01\0\0\0" storage "X\x03\0\0\0cpu" storage_bytes "tQM" offset "M" numel   \
	"\x85K\x01\x85\x89"                                                                        \
	"ccollections\nOrderedDict\n)RtR"

#define SHARED (6 * MIB + 1001) /* bytes, J\xe9\x03\x60\0 in a pickle */
#define VIEWS  2u

/* Two parts of a storage: "a" are bytes 0 to 1000, "b" 2001 to 2501. "t" is another storage,
 * whole. */
static const char views[] = "\x80\x02}(" VIEW("t", "0", "M\x88\x13", "\0\0", "\x88\x13")
	VIEW("a", "1", "J\xe9\x03\x60\0", "\0\0", "\xe8\x03")
		VIEW("b", "1", "J\xe9\x03\x60\0", "\xd1\x07", "\xf4\x01") "u.";

static void export_views(void)
{
	static unsigned char shared[SHARED];
	const struct nvs_checkpoint_storage storage = {sizeof(storage), shared, SHARED};
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .pickle = views,
						       .pickle_bytes = sizeof(views) - 1,
						       .storages = &storage,
						       .nstorages = 1};

	fill(shared, 1000, 10);
	fill(shared + 2001, 500, 11);
	OK(f, nvs_checkpoint_export(f->engine, &items[1], 1, path, &options, &f->error));
}

/* Imports the parts, and tells whether they have changed. */
static int read_views(struct nvs_tensor *const *parts, uint64_t *data_at)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	const uint64_t shapes[VIEWS + 1] = {5000, 1000, 500};
	struct nvs_checkpoint_item all[VIEWS + 1] = {
		{.size = sizeof(all[0]), .tensor = t[1], .name = "t"},
		{.size = sizeof(all[0]), .tensor = parts[0], .name = "a"},
		{.size = sizeof(all[0]), .tensor = parts[1], .name = "b"}};
	struct nvs_checkpoint *checkpoint;
	int rc;

	for (size_t i = 0; i < COUNT(all); i++) {
		all[i].shape = &shapes[i];
		all[i].ndim = 1;
	}
	OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
	assert_int_equal(nvs_checkpoint_get(checkpoint, 1, &tensor), 0);
	*data_at = tensor.offset;
	rc = nvs_checkpoint_import(f->engine, checkpoint, all, COUNT(all), &f->error);
	nvs_checkpoint_close(checkpoint);
	return rc;
}

static uint64_t bytes_read(void)
{
	struct nvs_aio_stats stats = {.size = sizeof(stats)};

	assert_int_equal(nvs_aio_get_stats(nvs_engine_aio(f->engine), &stats), 0);
	return stats.io[NVS_READ].bytes;
}

TEST(damage_anywhere_in_a_storage_is_found_by_the_tensors_that_are_parts_of_it)
{
	static const uint64_t nbytes[VIEWS] = {1000, 500};
	const uint64_t damaged[] = {0, 2500, 1500, SHARED / 2, SHARED - 1};
	struct nvs_tensor *parts[VIEWS];
	uint64_t data_at, before;

	make();
	tensors_add(f, "view", nbytes, VIEWS, parts);
	export_views();
	before = bytes_read();
	OK(f, read_views(parts, &data_at));
	assert_in_range(bytes_read() - before, SHARED, SHARED + MIB);
	tensor_compare(f, parts[0], 10);
	tensor_compare(f, parts[1], 11);
	for (size_t i = 0; i < COUNT(damaged); i++) {
		tensor_store(f, t[1], 101);
		tensor_store(f, parts[0], 102);
		tensor_store(f, parts[1], 103);
		flip(path, (off_t)(data_at + damaged[i]), 1);
		expect_error(f, read_views(parts, &data_at), -EBADMSG, "tensor a");
		flip(path, (off_t)(data_at + damaged[i]), 1);
		tensor_compare(f, t[1], 101);
		tensor_compare(f, parts[0], 102);
		tensor_compare(f, parts[1], 103);
	}
}

TEST(no_damaged_file_is_read_wrongly)
{
	uint64_t random = random_seed(__func__);
	unsigned refused = 0;
	off_t end;
	int fd;

	make();
	fd = open(path, O_RDONLY | O_CLOEXEC);
	end = lseek(fd, 0, SEEK_END);
	close(fd);
	for (unsigned i = 0; i < DAMAGES; i++) {
		off_t at = (off_t)random_below(&random, (uint64_t)end);
		uint8_t bits = (uint8_t)(1 + random_below(&random, 255));

		flip(path, at, bits);
		if (read_back())
			refused++;
		for (unsigned k = 0; k < N; k++)
			tensor_compare(f, t[k], k);
		flip(path, at, bits);
	}
	print_message("%u of %u refused\n", refused, DAMAGES);
	assert_true(refused > DAMAGES / 10);
	OK(f, read_back());
}

TEST(a_truncated_file_is_refused)
{
	off_t end;
	int fd;

	make();
	fd = open(path, O_RDWR | O_CLOEXEC);
	end = lseek(fd, 0, SEEK_END);
	for (off_t nbytes = end - 1; nbytes > 4; nbytes -= 97) {
		assert_int_equal(ftruncate(fd, nbytes), 0);
		assert_int_equal(read_back(), -EINVAL);
	}
	close(fd);
}

TEST(a_file_that_does_not_begin_as_a_zip_is_named)
{
	make();
	flip(path, 0, 0xff);
	expect_error(f, read_back(), -EINVAL, "does not begin as a zip");
	assert_int_equal(truncate(path, 0), 0);
	expect_error(f, read_back(), -EINVAL, "is empty");
}

/* A file of this pickle and one storage can't be read. */
static void refuse_pickle(const char *pickle, size_t nbytes, const char *words)
{
	const struct nvs_checkpoint_options options = {
		.size = sizeof(options), .pickle = pickle, .pickle_bytes = nbytes};

	make();
	OK(f, nvs_checkpoint_export(f->engine, &items[1], 1, path, &options, &f->error));
	expect_error(f, read_back(), -EINVAL, words);
}

/* 2 x 5000 elements over a storage of 5000, as torch.expand makes it. */
TEST(an_expanded_tensor_is_refused_as_other_views_are)
{
	static const char pickle[] = "\x80\x02}(X\x01\0\0\0tctorch._utils\n_rebuild_tensor_v2\n(("
				     "X\x07\0\0\0storagectorch"
				     "\nByteStorage\nX\x01\0\0\0"
				     "0X\x03\0\0\0cpuM\x88\x13tQK\0(K\x02M\x88\x13t(K\0K\x01t\x89"
				     "ccollections\nOrderedDict\n)RtRu.";

	refuse_pickle(pickle, sizeof(pickle) - 1, "do not follow one another");
}

/* A tensor of one byte of a storage of 5000. */
#define BYTE(name) VIEW(name, "0", "M\x88\x13", "\0\0", "\x01\0")

static void open_pickle(const char *pickle, size_t nbytes, size_t tensors)
{
	const struct nvs_checkpoint_options options = {
		.size = sizeof(options), .pickle = pickle, .pickle_bytes = nbytes};
	struct nvs_checkpoint *checkpoint;

	OK(f, nvs_checkpoint_export(f->engine, &items[1], 1, path, &options, &f->error));
	OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
	assert_int_equal(nvs_checkpoint_count(checkpoint), tensors);
	nvs_checkpoint_close(checkpoint);
}

/* As Python 3.11 pickles them: in protocol 2 by calls, in later ones by operations. */
TEST(values_of_any_kind_are_read_past)
{
	static const char protocol_2[] = "\x80\x02}(" BYTE("t")
		/* set([1]), b"\x00", bytearray(b"a"), 1+2j, Counter({"a": 1}), complex64 */
		"X\x01\0\0\0ac__builtin__\nset\n]K\x01"
		"a\x85R"
		"X\x01\0\0\0bc_codecs\nencode\nX\x01\0\0\0\0X\x06\0\0\0latin1\x86R"
		"X\x01\0\0\0cc__builtin__\nbytearray\nX\x01\0\0\0aX\x07\0\0\0latin-1\x86R"
		"X\x01\0\0\0dc__builtin__\ncomplex\nG?\xf0\0\0\0\0\0\0G@\0\0\0\0\0\0\0\x86R"
		"X\x01\0\0\0eccollections\nCounter\n}X\x01\0\0\0aK\x01s\x85R"
		"X\x01\0\0\0fctorch\ncomplex64\n"
		"u.";
	static const char protocol_5[] = "\x80\x05}(" BYTE("t")
		/* {1}, frozenset({1}), b"a" in two lengths, bytearray(b"a") */
		"X\x01\0\0\0a\x8f\x94(K\x01\x90"
		"X\x01\0\0\0b(K\x01\x91\x94"
		"X\x01\0\0\0cC\x01"
		"a"
		"X\x01\0\0\0d\x8e\x01\0\0\0\0\0\0\0"
		"a"
		"X\x01\0\0\0e\x96\x01\0\0\0\0\0\0\0"
		"a"
		"u.";
	/* {(1,): [2], None: {}}: a key that is no text is a name of no tensor */
	static const char keys[] = "\x80\x02}(" BYTE("t") "K\x01\x85]K\x02"
							  "aN}u.";

	make();
	open_pickle(protocol_2, sizeof(protocol_2) - 1, 1);
	open_pickle(protocol_5, sizeof(protocol_5) - 1, 1);
	open_pickle(keys, sizeof(keys) - 1, 1);
}

TEST(a_tensor_under_a_key_that_is_no_text_is_refused)
{
	static const char pickle[] = "\x80\x02}(K\x01\x85}(" BYTE("t") "uu.";

	refuse_pickle(pickle, sizeof(pickle) - 1, "a name that is no text");
}

/* No store holds such names, and no other format can have them. Python writes the second one. */
TEST(a_tensor_whose_name_is_not_utf8_is_refused)
{
	static const char *const keys[] = {"\xff", "\xed\xa0\x80", "\xc3", "a\xe9z"};

	for (size_t i = 0; i < COUNT(keys); i++)
		for (int below = 0; below < 2; below++) {
			static const char tensor[] = BYTE("t");
			char pickle[512] = "\x80\x02}(", *at = pickle + 4;

			at += sprintf(at, "X%c", (int)strlen(keys[i])) + 3;
			at = stpcpy(at, keys[i]);
			if (below)
				at = stpcpy(at, "}(");
			/* Without `below`, the tensor's own name gives way to the key. */
			memcpy(at, tensor + (below ? 0 : 6), sizeof(tensor) - (below ? 1 : 7));
			at = stpcpy(at + sizeof(tensor) - (below ? 1 : 7), below ? "uu." : "u.");
			refuse_pickle(pickle, (size_t)(at - pickle), "no text in UTF-8");
		}
}

/* Of checkpoint/torch/torch.h, whose names are not those of swap/swap_fixture.h. */
int torch_read_count(int fd, const char *path, const char *key, uint64_t *count,
		     struct nvs_error *error);

TEST(a_number_that_is_a_tensor_of_a_form_not_read_is_refused)
{
	static const char pickle[] =
		"\x80\x02}(" BYTE("t") "X\x04\0\0\0step"
				       "ctorch._utils\n_rebuild_sparse_tensor\n)Ru.";
	uint64_t step;
	int fd;

	make();
	open_pickle(pickle, sizeof(pickle) - 1, 1);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	expect_error(f, torch_read_count(fd, path, "step", &step, &f->error), -EINVAL, "step");
	close(fd);
}

/* Lists in which each holds the one before 255 times: a tensor millions of times, in a kilobyte. */
TEST(a_tensor_that_lists_hold_millions_of_times_is_refused_at_once)
{
	char pickle[2048] = "\x80\x02}(";
	size_t n = 4;

	memcpy(pickle + n, BYTE("t") "q\0X\x01\0\0\0l", sizeof(BYTE("t") "q\0X\x01\0\0\0l") - 1);
	n += sizeof(BYTE("t") "q\0X\x01\0\0\0l") - 1;
	for (char level = 0; level < 3; level++) {
		if (level) {
			memcpy(pickle + n, "K\0", 2);
			pickle[n + 1] = level;
			n += 2;
		}
		pickle[n++] = ']';
		pickle[n++] = '(';
		for (int i = 0; i < 255; i++) {
			pickle[n++] = 'h';
			pickle[n++] = level;
		}
		pickle[n++] = 'e';
		pickle[n++] = 'q';
		pickle[n++] = (char)(level + 1);
	}
	memcpy(pickle + n, "u.", 2);
	refuse_pickle(pickle, n + 2, "holding the same lists many times");
}

TEST(a_name_that_is_not_permitted_is_refused)
{
	static const char system[] = "\x80\x02"
				     "cos\nsystem\nX\x02\0\0\0ls\x85R.";
	/* Permitted as an argument, but no function. */
	static const char argument[] = "\x80\x02"
				       "ctorch\nfloat32\n)R.";

	refuse_pickle(system, sizeof(system) - 1, "os.system");
	refuse_pickle(system, sizeof(system) - 1, "nothing of it was executed");
	refuse_pickle(argument, sizeof(argument) - 1, "float32");
}

/* What a machine without checks would read or write beyond its arrays; a % begins each pickle. */
TEST(a_pickle_that_is_no_program_is_refused)
{
	static const char wrong[] =
		"%%.%N%t.%\x85.%R.%b.%Q.%e.%u.%s.%a.%h\0.%Nr\xff\xff\xff\xff.%q\0.%(Nt%NN.%(N."
		"%N(q\0.%X\xff\xff\xff\xff.%\x8d\xff\xff\xff\xff\xff\xff\xff\xff."
		"%\x8b\xff\xff\xff\x7f.%\x80\x06N.%ctorch\n%cx%}NN\x86s.%}(Nu.%NNa.%](N\x85R."
		"%K\x01Q.%i%\x90.%\x91.%](K\x01\x90.%(K\x01\x90.%\xff."
		"%\x8e\xff\xff\xff\xff\xff\xff\xff\xff.%\x96\x02\0\0\0\0\0\0\0a."
		"%ctorch._utils\n_rebuild_tensor_v2\n)R."
		"%ctorch._tensor\n_rebuild_from_type_v2\n)R."
		"%ctorch._tensor\n_rebuild_from_type_v2\n"
		"(ccollections\nOrderedDict\nctorch\nTensor\n)}tR."
		"%ctorch._tensor\n_rebuild_from_type_v2\n"
		"(ctorch._tensor\n_rebuild_from_type_v2\nctorch\nTensor\n)}tR.";
	const char *next, *end = wrong + sizeof(wrong) - 1;

	for (const char *at = wrong + 1; at <= end; at = next + 1) {
		struct nvs_error error = {.size = sizeof(error)};
		struct pickle pickle;
		uint8_t *bytes;
		size_t nbytes;

		next = memchr(at, '%', (size_t)(end - at));
		next = next ? next : end;
		nbytes = (size_t)(next - at);
		/* Of its exact length, so that AddressSanitizer sees what reads beyond it. */
		bytes = malloc(nbytes ? nbytes : 1);
		memcpy(bytes, at, nbytes);
		if (pickle_read(&pickle, bytes, nbytes, "f", &error) != -EINVAL)
			fail_msg("the pickle of byte %td is read", at - wrong);
		assert_says(error.text, "f: its pickle, byte ");
		pickle_free(&pickle);
		free(bytes);
	}
}

EACH_TEST(NULL, cleanup)
