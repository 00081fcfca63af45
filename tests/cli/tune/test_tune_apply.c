/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Applying a choice to a configuration: exactly the right bytes change in texts of every form, and
 * a failure leaves the old file or the new one.
 */
#include "support/support.h"

#include "cli/tune/tune.h"
#include "support/inject.h"

static const struct tune_point point = {NVS_IOENGINE_IO_URING, 524288, 16, 2, true, false};

#define FIVE                                                                                       \
	"\"block_size\": 524288, \"queue_depth\": 16, \"thread_count\": 2, "                       \
	"\"single_submit\": true, \"overlap_events\": false"
static struct nvs_error error = {.size = sizeof(error)};
static enum nvs_ioengine named;

/* The edit of a text; free the result. */
static int edit(const char *old, bool name_ioengine, struct tune_text *text)
{
	text->nbytes = strlen(old);
	text->bytes = strdup(old);
	assert_non_null(text->bytes);
	return tune_edit(text, "it", &point, name_ioengine, &named, &error);
}

static void check_engine(const char *old, bool name_ioengine, const char *expected)
{
	struct tune_text text;

	SUCCEEDS(edit(old, name_ioengine, &text), &error);
	assert_int_equal(text.nbytes, strlen(text.bytes));
	if (strcmp(text.bytes, expected) != 0)
		fail_msg("of\n%s\nbecame\n%s\ninstead of\n%s", old, text.bytes, expected);
	free(text.bytes);
}

static void check_edit(const char *old, const char *expected)
{
	check_engine(old, false, expected);
}

TEST(values_are_replaced_and_every_other_byte_stays)
{
	check_edit("{\"aio\": {" FIVE "}}", "{\"aio\": {" FIVE "}}");
	check_edit(
		"{ \"x\":[1 ,2],\t\"aio\" :{ \"overlap_events\":true , \"single_submit\":false,\n"
		" \"thread_count\": 1 ,\"queue_depth\":8,\"block_size\"  :  1.024e6 } , "
		"\"y\":1E2}\n",
		"{ \"x\":[1 ,2],\t\"aio\" :{ \"overlap_events\":false , \"single_submit\":true,\n"
		" \"thread_count\": 2 ,\"queue_depth\":16,\"block_size\"  :  524288 } , "
		"\"y\":1E2}\n");
	/* A value that is correct already keeps its notation, and so does a key. */
	check_edit("{\"\\u0061io\": {\"block_siz\\u0065\": 524288.0, \"queue_depth\": 1.6e1, "
		   "\"thread_count\": 2, \"single_submit\": true, \"overlap_events\": true}}",
		   "{\"\\u0061io\": {\"block_siz\\u0065\": 524288.0, \"queue_depth\": 1.6e1, "
		   "\"thread_count\": 2, \"single_submit\": true, \"overlap_events\": false}}");
	/* Objects of that name elsewhere are not the block. */
	check_edit("{\"a\": [{\"aio\": {\"block_size\": 1}}], \"b\": {\"aio\": {\"x\": {}}}, "
		   "\"aio\": {" FIVE "}}",
		   "{\"a\": [{\"aio\": {\"block_size\": 1}}], \"b\": {\"aio\": {\"x\": {}}}, "
		   "\"aio\": {" FIVE "}}");
}

TEST(an_existing_name_of_workers_is_kept)
{
	check_edit("{\"aio\": {\"intra_op_parallelism\": 1, \"block_size\": 4096, "
		   "\"queue_depth\": 16, \"single_submit\": true, \"overlap_events\": false}}",
		   "{\"aio\": {\"intra_op_parallelism\": 2, \"block_size\": 524288, "
		   "\"queue_depth\": 16, \"single_submit\": true, \"overlap_events\": false}}");
	check_edit(
		"{\"aio\": {\"intra_op_parallelism\": 1, \"thread_count\": 1, \"block_size\": "
		"4096, \"queue_depth\": 16, \"single_submit\": true, \"overlap_events\": false}}",
		"{\"aio\": {\"intra_op_parallelism\": 2, \"thread_count\": 2, \"block_size\": "
		"524288, \"queue_depth\": 16, \"single_submit\": true, \"overlap_events\": "
		"false}}");
}

TEST(missing_keys_are_added_in_the_indentation_of_the_block)
{
	check_edit("{\n\t\"aio\": {\n\t\t\"queue_depth\": 8,\n\n\t\t\"block_size\": 524288\n\t}\n}",
		   "{\n\t\"aio\": {\n\t\t\"queue_depth\": 16,\n\n\t\t\"block_size\": 524288,"
		   "\n\t\t\"thread_count\": 2,\n\t\t\"single_submit\": true,"
		   "\n\t\t\"overlap_events\": false\n\t}\n}");
	check_edit("{\r\n  \"aio\": {\r\n    \"queue_depth\": 8\r\n  }\r\n}\r\n",
		   "{\r\n  \"aio\": {\r\n    \"queue_depth\": 16,\r\n    \"block_size\": 524288,"
		   "\r\n    \"thread_count\": 2,\r\n    \"single_submit\": true,"
		   "\r\n    \"overlap_events\": false\r\n  }\r\n}\r\n");
	check_edit("{\"aio\":{\"queue_depth\":16}}",
		   "{\"aio\":{\"queue_depth\":16, \"block_size\": 524288, \"thread_count\": 2, "
		   "\"single_submit\": true, \"overlap_events\": false}}");
	check_edit("{ \"aio\": { \"block_size\": 1024 } }", "{ \"aio\": { " FIVE " } }");
}

TEST(a_missing_block_is_added_on_one_line)
{
	check_edit("{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\n  \"aio\": {" FIVE "}\n}\n");
	check_edit("{\n\t\"a\": {\n\t\t\"b\": 2\n\t}\n}",
		   "{\n\t\"a\": {\n\t\t\"b\": 2\n\t},\n\t\"aio\": {" FIVE "}\n}");
	check_edit("{\r\n    \"a\": []\r\n}",
		   "{\r\n    \"a\": [],\r\n    \"aio\": {" FIVE "}\r\n}");
	check_edit("{\"a\": 1}", "{\"a\": 1, \"aio\": {" FIVE "}}");
	check_edit("{}", "{\"aio\": {" FIVE "}}");
	check_edit("{\r\n}\r\n", "{\"aio\": {" FIVE "}\r\n}\r\n");
	check_edit("{\"a\": 1, \"aio\": {}, \"b\": 2}",
		   "{\"a\": 1, \"aio\": {" FIVE "}, \"b\": 2}");
	check_edit("{\n  \"aio\": null,\n  \"b\": 2\n}",
		   "{\n  \"aio\": {" FIVE "},\n  \"b\": 2\n}");
}

TEST(comments_and_last_commas_stay)
{
	check_edit("{ // mine\n  \"aio\": { # of the drive\n    \"queue_depth\": /* was 4 */ 8, // "
		   "now\n"
		   "  },\n  \"x\": Infinity, # as accelerate has it\n}\n",
		   "{ // mine\n  \"aio\": { # of the drive\n    \"queue_depth\": /* was 4 */ 16,"
		   "\n    \"block_size\": 524288,\n    \"thread_count\": 2,"
		   "\n    \"single_submit\": true,\n    \"overlap_events\": false, // now\n"
		   "  },\n  \"x\": Infinity, # as accelerate has it\n}\n");
	check_edit("{\n  \"a\": 1, // one\n}\n",
		   "{\n  \"a\": 1,\n  \"aio\": {" FIVE "}, // one\n}\n");
	check_edit("{\"aio\": { /* \"queue_depth\": 4 */ }}",
		   "{\"aio\": {" FIVE " /* \"queue_depth\": 4 */ }}");
}

TEST(the_engine_is_set_if_auto_would_choose_another)
{
	check_engine("{\"aio\": {" FIVE "}}", true,
		     "{\"aio\": {" FIVE "}, \"nvswap\": {\"ioengine\": \"io_uring\"}}");
	check_engine("{}", true, "{\"aio\": {" FIVE "}, \"nvswap\": {\"ioengine\": \"io_uring\"}}");
	check_engine("{\"nvswap\": {\"verify\": true}, \"aio\": {" FIVE "}}", true,
		     "{\"nvswap\": {\"verify\": true, \"ioengine\": \"io_uring\"}, \"aio\": {" FIVE
		     "}}");
	check_engine("{\"nvswap\": {\"ioengine\": \"auto\"}, \"aio\": {" FIVE "}}", true,
		     "{\"nvswap\": {\"ioengine\": \"io_uring\"}, \"aio\": {" FIVE "}}");
	check_engine("{\"nvswap\": {\"ioengine\": \"auto\"}, \"aio\": {" FIVE "}}", false,
		     "{\"nvswap\": {\"ioengine\": \"auto\"}, \"aio\": {" FIVE "}}");
	/* Settings found for one engine do not apply to another. */
	check_engine("{\"nvswap\": {\"ioengine\": \"posix\"}, \"aio\": {" FIVE "}}", false,
		     "{\"nvswap\": {\"ioengine\": \"io_uring\"}, \"aio\": {" FIVE "}}");
	check_engine("{\"nvswap\": {}, \"aio\": {" FIVE "}}", true,
		     "{\"nvswap\": {\"ioengine\": \"io_uring\"}, \"aio\": {" FIVE "}}");
}

static void check_refused(const char *old, const char *says)
{
	struct tune_text text;

	assert_int_equal(edit(old, false, &text), -EINVAL);
	assert_says(error.text, says);
	free(text.bytes);
}

TEST(invalid_configurations_are_refused)
{
	check_refused("", "it:1:1");
	check_refused("{\"aio\": [1]}", "aio is a list");
	check_refused("{\"nvswap\": true}", "nvswap is true");
	check_refused("{\"aio\": {}, \"aio\": {}}", "is already set on line 1");
	check_refused("{\"aio\": {\"block_siz\": 4096}}", "block_size");
	check_refused("{\"aio\": {\"thread_count\": 1, \"intra_op_parallelism\": 2}}", "its alias");
}

/* ---- Random texts ---- */

/* A text before and after; for additions, `after` is in fragments, in order. */
struct texts {
	char old[8192], due[8192];
	size_t n, due_n;
	uint64_t random;
	bool complete;
};

static void put(struct texts *texts, const char *old, const char *due)
{
	assert_true(texts->n + strlen(old) < sizeof(texts->old) &&
		    texts->due_n + strlen(due) < sizeof(texts->due));
	texts->n = (size_t)(stpcpy(texts->old + texts->n, old) - texts->old);
	texts->due_n = (size_t)(stpcpy(texts->due + texts->due_n, due) - texts->due);
}

static void put_same(struct texts *texts, const char *const *choices, unsigned n)
{
	const char *choice = choices[random_below(&texts->random, n)];

	put(texts, choice, choice);
}

/* With white space on either side. */
static void put_mark(struct texts *texts, const char *mark)
{
	static const char *const spaces[] = {"", "", "", " ", "\n", "\t", "\r\n  ", "\n\n    "};

	put_same(texts, spaces, COUNT(spaces));
	put(texts, mark, mark);
	put_same(texts, spaces, COUNT(spaces));
}

static void put_any_value(struct texts *texts, unsigned depth)
{
	static const char *const values[] = {"1",	   "-2.50e+3",
					     "null",	   "true",
					     "{}",	   "\"\"",
					     "\"\\\"},\"", "\"\xc3\xa9 aio\"",
					     "[]",	   "[1 , {\"aio\":{}}]"};

	if (!depth || random_below(&texts->random, 3)) {
		put_same(texts, values, COUNT(values));
		return;
	}
	put_mark(texts, "{\"aio\"");
	put_mark(texts, ":");
	put_any_value(texts, depth - 1);
	put_mark(texts, "}");
}

static void put_aio(struct texts *texts)
{
	static const struct {
		const char *key, *old, *due;
	} members[] = {{"\"block_size\"", "4096", "524288"},
		       {"\"queue_depth\"", "1e2", "16"},
		       {"\"thread_count\"", "1", "2"},
		       {"\"single_submit\"", "false", "true"},
		       {"\"overlap_events\"", "true", "false"}};
	unsigned n = COUNT(members), first = (unsigned)random_below(&texts->random, n);
	unsigned used = random_below(&texts->random, 2) ? n
							: (unsigned)random_below(&texts->random, n);

	texts->complete = used == n;
	if (!used) {
		put(texts, "{}", "{}");
		return;
	}
	put_mark(texts, "{");
	for (unsigned i = 0; i < used; i++) {
		unsigned m = (first + i) % n;

		if (i)
			put_mark(texts, ",");
		put(texts, members[m].key, members[m].key);
		put_mark(texts, ":");
		put(texts, members[m].old, members[m].due);
	}
	put_mark(texts, "}");
}

static void make_texts(struct texts *texts)
{
	unsigned n = (unsigned)random_below(&texts->random, 5);
	unsigned aio = (unsigned)random_below(&texts->random, n + 1); /* n: without one */
	char key[16];

	texts->n = texts->due_n = 0;
	texts->complete = false;
	put_mark(texts, "{");
	for (unsigned i = 0; i < n; i++) {
		snprintf(key, sizeof(key), i == aio ? "\"aio\"" : "\"k%u\"", i);
		if (i)
			put_mark(texts, ",");
		put(texts, key, key);
		put_mark(texts, ":");
		if (i == aio)
			put_aio(texts);
		else
			put_any_value(texts, 3);
	}
	put_mark(texts, "}");
}

/* Whether `part` can be made by removing bytes from `text`. */
static bool is_inside(const char *text, const char *part)
{
	for (; *text && *part; text++)
		part += *text == *part;
	return !*part;
}

TEST(random_texts_keep_their_bytes_in_order)
{
	struct texts texts = {.random = random_seed("tune_apply")};
	struct tune_text text;

	for (unsigned i = 0; i < 3000; i++) {
		make_texts(&texts);
		SUCCEEDS(edit(texts.old, false, &text), &error);
		if (texts.complete ? strcmp(text.bytes, texts.due) != 0
				   : !is_inside(text.bytes, texts.due))
			fail_msg("of\n%s\nbecame\n%s", texts.old, text.bytes);
		free(text.bytes);
	}
}

/* ---- Files ---- */

static const char old_text[] = "{\n  \"a\": 1,\n  \"aio\": {\"block_size\": 4096}\n}\n";

static const char new_text[] = "{\n  \"a\": 1,\n  \"aio\": {" FIVE "}\n}\n";

static void assert_holds(const char *path, const char *due)
{
	char *text = file_text(path);

	assert_string_equal(text, due);
	free(text);
}

TEST(the_file_keeps_its_mode_and_owner_and_a_link_stays_one)
{
	const char *directory = temp_directory(), *path = path_in(directory, "ds_config.json");
	const char *link = path_in(directory, "link.json");
	struct stat st, again;

	write_text(path, old_text);
	assert_int_equal(chmod(path, 0640), 0);
	if (!geteuid())
		assert_int_equal(chown(path, 12345, 54321), 0);
	assert_int_equal(symlink("ds_config.json", link), 0);
	SUCCEEDS(tune_apply(link, NULL, false, &named, &error), &error);
	assert_holds(path, old_text);
	assert_int_equal(entries_of(directory), 2);
	SUCCEEDS(tune_apply(link, &point, false, &named, &error), &error);
	assert_holds(path, new_text);
	assert_int_equal(lstat(link, &st), 0);
	assert_true(S_ISLNK(st.st_mode));
	assert_int_equal(lstat(path, &st), 0);
	assert_int_equal(st.st_mode, S_IFREG | 0640);
	if (!geteuid())
		assert_true(st.st_uid == 12345 && st.st_gid == 54321);
	assert_int_equal(entries_of(directory), 2);
	/* A file that has the choice is not written. */
	SUCCEEDS(tune_apply(path, &point, false, &named, &error), &error);
	assert_int_equal(stat(path, &again), 0);
	assert_int_equal(again.st_ino, st.st_ino);
}

TEST(an_unwritable_output_is_reported_before_the_run)
{
	const char *directory = temp_directory(), *path = path_in(directory, "ds_config.json");

	assert_int_equal(tune_apply(path, NULL, false, &named, &error), -ENOENT);
	assert_says(error.text, "ds_config.json");
	assert_int_equal(tune_apply(directory, NULL, false, &named, &error), -EINVAL);
	assert_says(error.text, "is not a regular file");
	assert_int_equal(tune_apply("/dev/null", NULL, false, &named, &error), -EINVAL);
	write_text(path, "{\"aio\": 7}");
	assert_int_equal(tune_apply(path, NULL, false, &named, &error), -EINVAL);
	assert_says(error.text, "ds_config.json:1:9");
}

/* Without root's privileges. */
static int apply_where_nothing_may_be_made(void *path)
{
	if (!geteuid() && (setgid(65534) || setuid(65534)))
		return CHILD_SKIPPED;
	EXPECT(tune_apply(path, NULL, false, &named, &error) == -EACCES);
	EXPECT(strstr(error.text, "give a copy in a directory that you may write to"));
	EXPECT(tune_apply(path, &point, false, &named, &error) == -EACCES);
	return CHILD_OK;
}

TEST(an_unwritable_directory_is_reported)
{
	char directory[] = "/tmp/nvswap-apply-XXXXXX", path[64], *text;
	int rc;

	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/ds_config.json", directory);
	write_text(path, old_text);
	assert_int_equal(chmod(path, 0666), 0);
	assert_int_equal(chmod(directory, 0555), 0);
	rc = in_child(apply_where_nothing_may_be_made, path);
	text = file_text(path);
	chmod(directory, 0700);
	unlink(path);
	rmdir(directory);
	assert_int_equal(rc, CHILD_OK);
	assert_string_equal(text, old_text);
	free(text);
}

TEST(a_failing_call_leaves_the_old_file_or_the_new)
{
	const char *directory = temp_directory(), *path = path_in(directory, "ds_config.json");
	uint64_t failed = 1;
	unsigned failures = 0;

	for (uint64_t nth = 1; failed; nth++) {
		bool is_old;
		char *text;
		int rc;

		write_text(path, old_text);
		inject_fail(INJECT_ANY, nth, 1, EIO);
		rc = tune_apply(path, &point, false, &named, &error);
		inject_stop(&failed);
		text = file_text(path);
		is_old = !strcmp(text, old_text);
		assert_true(is_old || !strcmp(text, new_text));
		free(text);
		assert_true(rc || !is_old);
		assert_true(!rc || error.text[0]);
		assert_int_equal(entries_of(directory), 1);
		failures += rc != 0;
	}
	assert_true(failures > 8);
}

EACH_TEST(NULL, cleanup)
