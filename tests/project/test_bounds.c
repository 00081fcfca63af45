/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reading a file takes of memory is bounded by a multiple of its bytes, which the header of
 * each reader states, whatever the file has: here are those that take most for their length.
 */
#include "base/json/read.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"
#include "cli/compare/compare.h"
#include "cli/jobs/jobs.h"
#include "cli/replay/replay.h"
#include "config/reader.h"
#include "support/inject.h"
#include "support/support.h"

#define LENGTH 300000u

static char text[2 * LENGTH];

/* `begin`, `piece` again and again, and `end`: LENGTH bytes or a few more. Returns how many. */
static size_t repeat(const char *begin, const char *piece, size_t n, const char *end)
{
	size_t used = strlen(begin);

	memcpy(text, begin, used);
	for (; used < LENGTH; used += n)
		memcpy(text + used, piece, n);
	strcpy(text + used, end);
	return used + strlen(end);
}

static void is_bounded(const char *what, int64_t peak, size_t bound)
{
	if (peak > (int64_t)bound)
		fail_msg("%s: %ld bytes of memory, more than %zu", what, (long)peak, bound);
}

/* ---- JSON ---- */

static const struct {
	const char *begin, *piece, *end;
} documents[] = {
	{"[1", ",1", "]"},
	{"[[]", ",[]", "]"},
	{"[{}", ",{}", "]"},
	{"[\"\"", ",\"\"", "]"},
	{"[[1]", ",[1]", "]"},
	{"{\"\":1", ",\"\":1", "}"},
	{"{\"a\":{}", ",\"a\":{}", "}"},
	{"[", "[", "]"},
	{"{\"a\":", "{\"a\":", "1}"},
	{"[\"", "\\n", "\"]"},
	{"", "1", ""},
	{"\"", "x", "\""},
	{"{\"jobs\":[{}", ",{}", "]}"},
	{"{\"jobs\":[[]", ",[]", "]}"},
	{"{\"jobs\":[{\"jobname\":\"\"}", ",{\"jobname\":\"\"}", "]}"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[0", ",0", "]}}"},
	{"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}", ",\"a\":{\"dtype\":\"U8\",\"shape\":[0]}", "}"},
	{"{\"weight_map\":{\"\":\"\"", ",\"\":\"\"", "}}"},
};

TEST(json_takes_memory_in_proportion_to_its_text)
{
	for (size_t i = 0; i < COUNT(documents); i++) {
		const char *piece = documents[i].piece;
		size_t n = repeat(documents[i].begin, piece, strlen(piece), documents[i].end);
		struct json_document *document;

		inject_peak();
		if (!json_parse(&document, text, n, "text", SIZE_MAX, NULL))
			json_free(document);
		is_bounded(piece, inject_peak(), JSON_BYTES(n));
	}
}

static const char *written(const char *name, const void *data, size_t n)
{
	const char *path = path_in(temp_directory(), name);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0 && write(fd, data, n) == (ssize_t)n);
	close(fd);
	return path;
}

/* The command frees nothing before it exits, so it is a child here. */
static int compare_twice(void *path)
{
	char *operands[2] = {path, path};
	struct comparison comparison = {0};
	struct stat status;

	EXPECT(!stat(path, &status) && freopen("/dev/null", "w", stderr));
	inject_peak();
	comparison_read(&comparison, operands, 2);
	EXPECT(inject_peak() <= 2 * (int64_t)RESULTS_BYTES(status.st_size));
	return CHILD_OK;
}

TEST(configurations_results_and_headers_take_memory_in_proportion_to_their_text)
{
	for (size_t i = 0; i < COUNT(documents); i++) {
		const char *piece = documents[i].piece;
		size_t n = repeat(documents[i].begin, piece, strlen(piece), documents[i].end);
		const char *path = written("x.json", text, n);
		struct nvs_checkpoint *checkpoint;
		struct nvs_config *config;

		inject_peak();
		assert_int_equal(nvs_config_open(&config, NULL), 0);
		nvs_config_load(config, path, NULL);
		nvs_config_close(config);
		is_bounded(piece, inject_peak(), CONFIG_BYTES(n));
		if (!nvs_checkpoint_open(&checkpoint, path, NULL))
			nvs_checkpoint_close(checkpoint);
		is_bounded(piece, inject_peak(), HEADER_BYTES(n));
		assert_int_equal(in_child(compare_twice, (void *)(uintptr_t)path), CHILD_OK);
		cleanup(NULL);
	}
}

/* ---- Files of torch.save ---- */

static uint8_t file[4 * LENGTH], directory[2 * LENGTH];

/* Writes `nbytes` of a number. */
static uint8_t *put(uint8_t *at, uint64_t number, size_t nbytes)
{
	for (size_t i = 0; i < nbytes; i++, number >>= 8)
		*at++ = (uint8_t)number;
	return at;
}

static uint8_t *put_record(uint8_t *at, uint8_t **entry, const char *name, const void *data,
			   size_t nbytes)
{
	uint64_t crc = zip_crc32(data, nbytes), header_at = (uint64_t)(at - file);
	size_t length = strlen(name);

	for (int i = 0; i < 2; i++) {
		uint8_t *to = i ? *entry : at;

		to = put(to, i ? 0x02014b50 : 0x04034b50, i ? 6 : 4);
		to = put(to, 0, 10);
		to = put(to, crc, 4);
		to = put(to, nbytes, 4);
		to = put(to, nbytes, 4);
		to = put(to, length, i ? 14 : 4);
		if (i)
			to = put(to, header_at, 4);
		to = (uint8_t *)mempcpy(to, name, length);
		if (i)
			*entry = to;
		else
			at = (uint8_t *)mempcpy(to, data, nbytes);
	}
	return at;
}

/* A file with that pickle, and with further records: what opening it takes at most. */
static int64_t peak_of_pickle(const void *pickle, size_t nbytes, unsigned records, size_t *bytes)
{
	static const char data[64];
	struct nvs_checkpoint *checkpoint;
	uint8_t *entry = directory, *at = file;
	size_t n;

	at = put_record(at, &entry, "a/data.pkl", pickle, nbytes);
	at = put_record(at, &entry, "a/data/0", data, sizeof(data));
	for (unsigned i = 0; i < records; i++) {
		char name[16];

		snprintf(name, sizeof(name), "%x", i);
		at = put_record(at, &entry, name, "", 0);
	}
	n = (size_t)(entry - directory);
	*bytes = nbytes + n;
	at = (uint8_t *)mempcpy(at, directory, n);
	entry = at - n;
	at = put(at, 0x06054b50, 8);
	at = put(at, records + 2, 2);
	at = put(at, records + 2, 2);
	at = put(at, n, 4);
	at = put(at, (uint64_t)(entry - file), 4);
	at = put(at, 0, 2);
	const char *path = written("x.pt", file, (size_t)(at - file));

	inject_peak();
	if (!nvs_checkpoint_open(&checkpoint, path, NULL))
		nvs_checkpoint_close(checkpoint);
	cleanup(NULL);
	return inject_peak();
}

/* A tensor of one byte, and what stands before and behind the pieces. */
#define TENSOR                                                                                     \
	"ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nByteStorage\nX\1\0\0\0"      \
	"0X\3\0\0\0cpuK@"                                                                          \
	"tQK\0K\1\x85K\1\x85\x89"                                                                  \
	"ccollections\nOrderedDict\n)RtR"
struct piece {
	const char *bytes;
	size_t n;
};
#define PIECE(bytes)                                                                               \
	{                                                                                          \
		bytes, sizeof(bytes) - 1                                                           \
	}

TEST(files_of_torch_take_memory_in_proportion_to_their_pickles)
{
	static const struct piece pieces[] = {
		PIECE("]"),	      PIECE(")"),
		PIECE("N"),	      PIECE("("),
		PIECE("}"),	      PIECE("N\x94\x94\x94"),
		PIECE("N\x85"),	      PIECE("NNN\x87"),
		PIECE("]Na"),	      PIECE("(t"),
		PIECE("X\1\0\0\0a"),  PIECE("\x8c\0"),
		PIECE("\x8f"),	      PIECE("]NaNaNaNaNa"),
		PIECE("(NNNNNNNNNt"), PIECE("cbuiltins\nset\n"),
		PIECE("](NNNNNe"),    PIECE("\x8e\0\0\0\0\0\0\0\0"),
	};
	/* Of a list, whose tensor the memo has. */
	static const struct piece shared[] = {PIECE("h\0"), PIECE("h\0h\0"), PIECE("]h\0a"),
					      PIECE("K\1h\0")};
	size_t bytes;
	int64_t peak;

	for (size_t i = 0; i < COUNT(pieces); i++) {
		size_t n = repeat("\x80\2", pieces[i].bytes, pieces[i].n, ".");

		peak = peak_of_pickle(text, n, 0, &bytes);
		is_bounded(pieces[i].bytes, peak, TORCH_BYTES(bytes));
	}
	for (size_t i = 0; i < COUNT(shared); i++) {
		static const char begin[] = "\x80\2](" TENSOR "q\0";
		size_t n = sizeof(begin) - 1;

		memcpy(text, begin, n);
		for (; n < LENGTH; n += shared[i].n)
			memcpy(text + n, shared[i].bytes, shared[i].n);
		memcpy(text + n, "e.", 2);
		peak = peak_of_pickle(text, n + 2, 0, &bytes);
		is_bounded("a tensor many times", peak, TORCH_BYTES(bytes));
	}
	memcpy(text, "\x80\2N.", 4);
	peak = peak_of_pickle(text, 4, 4000, &bytes);
	is_bounded("records", peak, TORCH_BYTES(bytes));
}

TEST(a_tensor_reached_many_times_takes_memory_in_proportion_to_its_pickle)
{
	static const char begin[] = "\x80\2" TENSOR "q\0";
	size_t n = sizeof(begin) - 1, bytes;
	int64_t peak;

	memcpy(text, begin, n);
	for (char level = 0; level < 3; level++) {
		text[n++] = ']';
		text[n++] = '(';
		for (int i = 0; i < 255; i++) {
			text[n++] = 'h';
			text[n++] = level;
		}
		text[n++] = 'e';
		text[n++] = 'q';
		text[n++] = (char)(level + 1);
	}
	/* All but the last list would be left on the stack. */
	text[n++] = '\x87';
	text[n++] = '\x86';
	text[n++] = '.';
	peak = peak_of_pickle(text, n, 0, &bytes);
	is_bounded("lists in lists", peak, TORCH_BYTES(bytes));
}

TEST(a_short_file_takes_little_memory)
{
	const char *path = written("x.json", "{\"jobs\":[]}", 11);
	struct nvs_checkpoint *checkpoint;
	size_t bytes;
	int64_t peak;

	assert_int_equal(in_child(compare_twice, (void *)(uintptr_t)path), CHILD_OK);
	inject_peak();
	assert_int_equal(nvs_checkpoint_open(&checkpoint, path, NULL), -EINVAL);
	is_bounded("a header", inject_peak(), HEADER_BYTES(11));
	cleanup(NULL);
	peak = peak_of_pickle("\x80\2N.", 4, 0, &bytes);
	is_bounded("a pickle", peak, TORCH_BYTES(bytes));
}

TEST(job_files_take_memory_in_proportion_to_their_text)
{
	char value[4000];
	static const char *const pieces[] = {"\n", "[a]\n", "k=1\n", "k\n", "#\n", "k=${X}\n"};

	memset(value, 'x', sizeof(value) - 1);
	value[sizeof(value) - 1] = 0;
	assert_int_equal(setenv("X", value, 1), 0);
	for (size_t i = 0; i < COUNT(pieces); i++) {
		size_t n = repeat("[b]\n", pieces[i], strlen(pieces[i]), "");
		const char *path = written("x.fio", text, n);
		void *memory = NULL;
		struct jobfile jobfile;

		inject_peak();
		if (!jobfile_read(&jobfile, path, &memory, NULL))
			for (size_t k = 0; k < jobfile.nlines; k++)
				jobfile_expand(&memory, &jobfile.lines[k], NULL);
		jobfile_forget(&memory);
		is_bounded(pieces[i], inject_peak(), JOBFILE_BYTES(n));
		cleanup(NULL);
	}
}

TEST(accesses_take_memory_in_proportion_to_their_text)
{
	static const char *const lines[] = {"\n", "step\n", "release a\nswapin a\n",
					    "swapout a\nprefetch a\n", "compute 1s\n"};
	struct nvs_error error = {.size = sizeof(error)};

	for (size_t i = 0; i < COUNT(lines) + 2; i++) {
		size_t n = 0;

		if (i < COUNT(lines))
			n = repeat(*lines[i] == 'r' ? "swapin a 1k\n" : "swapout a 1k\n", lines[i],
				   strlen(lines[i]), "");
		for (unsigned k = 0; i >= COUNT(lines) && n < LENGTH; k++)
			n += (size_t)sprintf(
				text + n,
				i == COUNT(lines) ? "swapout %x 1\n" : "swapout %x 1\nstep\n", k);

		const char *path = written("x.txt", text, n);
		struct access_list list = {0};
		struct model model = {0};

		inject_peak();
		accesses_load(&list, &model, path, &error);
		accesses_free(&list);
		model_free(&model);
		is_bounded(i < COUNT(lines) ? lines[i] : "names", inject_peak(), ACCESSES_BYTES(n));
		cleanup(NULL);
	}
}
