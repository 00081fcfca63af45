/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing JSON: positions, spans, escapes, duplicates, exact numbers, the memory limit
 * of a document, and the writer's output. test_config.c tests syntax errors.
 */
#include "base/json/read.h"
#include "base/json/write.h"
#include "support/support.h"

#include <math.h>

/* ---- Reading ---- */

static struct nvs_error error = {.size = sizeof(error)};

static struct json_document *read_text(const char *text)
{
	struct json_document *document;

	SUCCEEDS(json_parse(&document, text, strlen(text), "text", SIZE_MAX, &error), &error);
	return document;
}

static int read_relaxed(struct json_document **document, const char *text)
{
	return json_parse_relaxed(document, text, strlen(text), "text", SIZE_MAX, &error);
}

TEST(each_value_has_its_line_column_and_span)
{
	static const char text[] =
		"{\n  \"a\" : [1,\r\n\t\"\xc3\xa9\", null ],\"b\":{\"c\":false}\n}";
	static const struct json_place places[] = {{2, 9}, {2, 10}, {3, 2},
						   {3, 7}, {3, 18}, {3, 23}};
	struct json_document *document;
	const struct json_value *a, *b, *values[6];

	assert_int_equal(json_parse(&document, text, sizeof(text) - 1, "", 1 << 20, NULL), 0);
	a = json_root(document)->first;
	b = a->next;
	assert_int_equal(json_root(document)->count, 2);
	assert_int_equal(a->count, 3);
	values[0] = a;
	values[1] = a->first;
	values[2] = a->first->next;
	values[3] = a->first->next->next;
	values[4] = b;
	values[5] = b->first;
	for (size_t i = 0; i < COUNT(places); i++) {
		assert_int_equal(values[i]->place.line, places[i].line);
		assert_int_equal(values[i]->place.column, places[i].column);
	}
	assert_int_equal(a->key_place.line, 2);
	assert_int_equal(a->key_place.column, 3);
	assert_int_equal(b->first->key_place.column, 19);
	assert_string_equal(b->first->key, "c");
	assert_null(a->first->key);
	assert_memory_equal(a->raw, "[1,\r\n\t\"\xc3\xa9\", null ]", a->raw_length);
	assert_int_equal(a->raw_length, 18);
	assert_ptr_equal(json_root(document)->raw, text);
	assert_int_equal(json_root(document)->raw_length, sizeof(text) - 1);
	assert_int_equal(a->first->next->raw_length, 4);
	assert_ptr_equal(b->key_raw, strstr(text, "\"b\""));
	json_free(document);
}

TEST(strings_are_decoded)
{
	static const struct {
		const char *text, *string;
		size_t length;
		bool lone_surrogate;
	} strings[] = {
		{"\"\"", "", 0, false},
		{"\"plain\"", "plain", 5, false},
		{"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8, false},
		{"\"\\u0041\\u00e9\\u20AC\\uD83D\\uDE00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
		 10, false},
		{"\"a\\u0000b\"", "a\0b", 3, false},
		{"\"\\ud800\\udc00\"", "\xf0\x90\x80\x80", 4, false},
		{"\"\\udbff\\udfff\"", "\xf4\x8f\xbf\xbf", 4, false},
		{"\"\\ud800\"", "\xef\xbf\xbd", 3, true},
		{"\"\\udc00\\ud800\"", "\xef\xbf\xbd\xef\xbf\xbd", 6, true},
		{"\"\\ud800\\u0041\"", "\xef\xbf\xbd\x41", 4, true},
		{"\"\\ud800\\\\dc00\"", "\xef\xbf\xbd\\dc00", 8, true},
	};

	for (size_t i = 0; i < COUNT(strings); i++) {
		const char *text = strings[i].text;
		struct json_document *document;
		const struct json_value *value;
		int rc = json_parse(&document, text, strlen(text), "text", SIZE_MAX, NULL);

		/* Half of a pair is no character; Python's json writes it all the same. */
		assert_int_equal(rc, strings[i].lone_surrogate ? -EINVAL : 0);
		if (rc)
			assert_int_equal(read_relaxed(&document, text), 0);
		value = json_root(document);
		assert_int_equal(value->type, JSON_STRING);
		assert_int_equal(value->length, strings[i].length);
		assert_memory_equal(value->string, strings[i].string, value->length + 1);
		assert_int_equal(value->lone_surrogate, strings[i].lone_surrogate);
		json_free(document);
	}
}

TEST(duplicate_keys_are_listed_in_order)
{
	struct json_document *document =
		read_text("{\"b\": 1, \"a\": 2, \"c\": {\"d\": 1}, \"a\": 3, \"b\": 4, \"a\": 5}");
	const struct json_value *root = json_root(document), *twice = root->duplicate;

	assert_memory_equal(twice->raw, "3", 1);
	assert_memory_equal(twice->earlier->raw, "2", 1);
	assert_memory_equal(twice->next->earlier->raw, "1", 1);
	assert_memory_equal(twice->next->next->earlier->raw, "3", 1);
	assert_null(json_member(root, "c")->duplicate);
	json_free(document);
}

TEST(whole_numbers_are_exact_in_every_notation)
{
	static const struct {
		const char *text;
		enum json_whole what;
		uint64_t whole;
	} numbers[] = {
		{"0", JSON_WHOLE, 0},
		{"-0.00e5", JSON_WHOLE, 0},
		{"0e99999999999999999999", JSON_WHOLE, 0},
		{"1.0", JSON_WHOLE, 1},
		{"10.0e-1", JSON_WHOLE, 1},
		{"0.001e3", JSON_WHOLE, 1},
		{"100e-2", JSON_WHOLE, 1},
		{"1.5e3", JSON_WHOLE, 1500},
		{"1.5E+3", JSON_WHOLE, 1500},
		{"1e8", JSON_WHOLE, 100000000},
		{"102030e2", JSON_WHOLE, 10203000},
		{"10.20300e5", JSON_WHOLE, 1020300},
		{"9007199254740993", JSON_WHOLE, 9007199254740993},
		{"9.007199254740993e15", JSON_WHOLE, 9007199254740993},
		{"18446744073709551615", JSON_WHOLE, UINT64_MAX},
		{"1.8446744073709551615e19", JSON_WHOLE, UINT64_MAX},
		{"18446744073709551615.000", JSON_WHOLE, UINT64_MAX},
		{"18446744073709551616", JSON_TOO_LARGE, 0},
		{"18446744073709551620", JSON_TOO_LARGE, 0},
		{"1e19", JSON_WHOLE, 10000000000000000000u},
		{"1e20", JSON_TOO_LARGE, 0},
		{"1e9223372036854775808", JSON_TOO_LARGE, 0},
		{"1.5", JSON_FRACTION, 0},
		{"1.55e1", JSON_FRACTION, 0},
		{"15e-1", JSON_FRACTION, 0},
		{"1e-9223372036854775809", JSON_FRACTION, 0},
		{"18446744073709551616.5", JSON_FRACTION, 0},
		{"-1", JSON_NEGATIVE, 0},
		{"-1e99", JSON_NEGATIVE, 0},
	};

	for (size_t i = 0; i < COUNT(numbers); i++) {
		struct json_document *document = read_text(numbers[i].text);
		uint64_t whole = 1;

		if (json_read_whole(json_root(document), &whole) != numbers[i].what ||
		    whole != numbers[i].whole)
			fail_msg("%s is read as %" PRIu64, numbers[i].text, whole);
		json_free(document);
	}
}

/* The memory limit grows from zero, so each allocation fails once. */
TEST(parsing_survives_the_failure_of_any_allocation)
{
	struct json_document *document;
	size_t max = 0, failures = 0;
	char text[9000], *at = text;
	int result;

	/* A key with a chunk of its own, many values, and members to sort. */
	at += sprintf(at, "{\"\\u0041");
	memset(at, 'k', 5000);
	at += 5000;
	at += sprintf(at, "\": [1, {\"a\": 1, \"b\": 2, \"a\": 3}, [");
	for (int i = 0; i < 1000; i++)
		at += sprintf(at, "%s1", i ? "," : "");
	at += sprintf(at, "]]} ");
	do {
		result = json_parse(&document, text, (size_t)(at - text), "ds.json", max, &error);
		if (result) {
			assert_int_equal(result, -ENOMEM);
			assert_null(document);
			assert_says(error.text, "out of memory");
			failures++;
		}
		max += 64;
	} while (result);
	json_free(document);
	assert_in_range(failures, 100, 100000);
}

TEST(only_relaxed_text_has_comments_and_what_python_writes)
{
	static const char *const texts[] = {
		"{\"a\": Infinity}",	"{\"a\": -Infinity}",	     "[NaN]",
		"{\"a\": [1, 2,],}",	"{ // why\n\"a\": 1}",	     "{\"a\": # why\n 1}",
		"/* why */ {\"a\": 1}", "{/**/\"a\"/*:*/:/***/1}//", "\xef\xbb\xbf{\"a\": 1} # end",
	};
	static const struct {
		const char *text, *says;
	} wrong[] = {
		{"{\"a\": 1,,}", "text:1:9: a key in double quotes"},
		{"{\"a\": 1 /* why }", "found /*; a comment that begins here does not end"},
		{"{\"a\": 1 / 2}", "text:1:9: "},
		{"{\"a\": Infinite}", "text:1:7: a value is expected here; found Infinite"},
		{"{\"a\": NaNs}", "text:1:10: a ',' or '}' is expected"},
		{"{\"a\": +Infinity}", "text:1:7: a value is expected"},
		{"# root:\nroot:x:0:0", "text:2:1: a value is expected here; found r"},
	};
	struct json_document *document;
	const struct json_value *a;

	for (size_t i = 0; i < COUNT(texts); i++) {
		assert_int_equal(
			json_parse(&document, texts[i], strlen(texts[i]), "text", SIZE_MAX, NULL),
			-EINVAL);
		if (read_relaxed(&document, texts[i]))
			fail_msg("%s\n-> %s", texts[i], error.text);
		a = json_root(document)->first;
		assert_int_equal(a->type, i < 3	   ? JSON_NONFINITE
					  : i == 3 ? JSON_ARRAY
						   : JSON_NUMBER);
		if (i < 3)
			assert_memory_equal(a->raw, strpbrk(texts[i], "-IN"), a->raw_length);
		if (i == 3)
			assert_int_equal(a->count, 2);
		json_free(document);
	}
	for (size_t i = 0; i < COUNT(wrong); i++) {
		assert_int_equal(read_relaxed(&document, wrong[i].text), -EINVAL);
		if (!strstr(error.text, wrong[i].says))
			fail_msg("%s\n-> %s\nis not %s", wrong[i].text, error.text, wrong[i].says);
	}
	assert_null(strstr(error.text, "root"));
}

/* ---- Writing ---- */

static void write_sample(struct json_writer *json)
{
	json_open_object(json, NULL);
	json_text(json, "text", "a\"\\/\b\f\n\r\t\x1b\x7f\xc3\xa9");
	json_text(json, "no utf-8", "a\xff\xc3\xa9\n");
	json_count(json, "count", UINT64_MAX);
	json_number(json, "signed", "%" PRId64, INT64_MIN);
	json_open_list(json, "exact");
	json_exact(json, NULL, 0.1);
	json_exact(json, NULL, 1.0 / 3);
	json_exact(json, NULL, NAN);
	json_close_list(json);
	json_real(json, "real", 2.0 / 3);
	json_real(json, "infinite", INFINITY);
	json_number(json, "number", "%d.%03u", 1, 5u);
	json_open_list(json, "list");
	json_open_object(json, NULL);
	json_bool(json, "yes", true);
	json_close_object(json);
	json_null(json, NULL);
	json_close_list(json);
	json_open_object(json, "empty");
	json_close_object(json);
	json_bool(json, "no", false);
	json_close_object(json);
}

/* The sample as written, which the caller frees. */
static char *written(unsigned indent)
{
	char *text = NULL;
	size_t nbytes;
	FILE *file = open_memstream(&text, &nbytes);
	struct json_writer json = json_to(file, indent);

	assert_non_null(file);
	write_sample(&json);
	assert_int_equal(fclose(file), 0);
	return text;
}

TEST(output_on_one_line_has_no_blanks)
{
	char *text = written(0);

	assert_string_equal(
		text, "{\"text\":\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u001B\\u007F\xc3\xa9\","
		      "\"no utf-8\":\"a???\\n\",\"count\":18446744073709551615,"
		      "\"signed\":-9223372036854775808,\"exact\":[0.1,0.3333333333333333,null],"
		      "\"real\":0.666667,\"infinite\":0.000000,\"number\":1.005,"
		      "\"list\":[{\"yes\":true},null],\"empty\":{},\"no\":false}");
	free(text);
}

TEST(indented_output_has_the_form_of_fios_json)
{
	char *text = written(2);

	assert_says(text, "{\n  \"text\": \"a");
	assert_says(text, "\n  \"exact\": [\n    0.1,\n");
	assert_says(text, "\n  \"list\": [\n    {\n      \"yes\": true\n    },\n    null\n  ],\n");
	assert_says(text, "\n  \"empty\": {\n\n  },\n  \"no\": false\n}\n");
	free(text);
}

TEST(text_for_people_has_a_line_for_each_member)
{
	char *text = NULL;
	size_t nbytes;
	FILE *file = open_memstream(&text, &nbytes);
	struct json_writer json = json_as_text(file);

	assert_non_null(file);
	json_open_object(&json, NULL);
	json_text(&json, "io_engine", "a\x1b[2J\xff");
	json_text(&json, "empty", "");
	json_null(&json, "null");
	json_exact(&json, "unknown", NAN);
	json_count(&json, "memory_bytes", UINT64_C(3) << 29);
	json_exact(&json, "bytes_per_day", 2048);
	json_count(&json, "bytes", 5);
	json_count(&json, "shared_tensors", 2);
	json_count(&json, "shared_tensor_bytes", 7);
	json_count(&json, "nbytes", 9);
	json_exact(&json, "days", 1.0 / 3);
	json_exact(&json, "hours", 12345);
	json_real(&json, "seconds", 1234567);
	json_texts(&json, "advice", NULL, 0);
	json_open_list(&json, "paths");
	for (unsigned i = 1; i <= 2; i++) {
		json_open_object(&json, NULL);
		json_count(&json, "rank", i);
		json_open_list(&json, "shapes");
		for (unsigned k = 1; k <= 2; k++) {
			json_open_row(&json);
			json_bool(&json, "is_whole", k == 1);
			json_open_list(&json, "shape");
			for (unsigned d = 1; d <= i; d++)
				json_count(&json, NULL, d);
			json_close_list(&json);
			json_count(&json, "offset", 7);
			json_close_object(&json);
		}
		json_close_list(&json);
		json_close_object(&json);
	}
	json_close_list(&json);
	json_close_object(&json);
	assert_int_equal(fclose(file), 0);
	assert_string_equal(text, "io engine                    a\\x1b[2J\\xff\n"
				  "memory                       1.50 GiB\n"
				  "bytes per day                2 KiB\n"
				  "bytes                        5 bytes\n"
				  "shared tensors               2\n"
				  "shared tensor bytes          7 bytes\n"
				  "nbytes                       9 bytes\n"
				  "days                         0.3333\n"
				  "hours                        12345\n"
				  "seconds                      1234567\n"
				  "advice none\n"
				  "paths\n"
				  "  rank                       1\n"
				  "  shapes\n"
				  "    - is whole yes, shape 1, offset 7\n"
				  "    - is whole no, shape 1, offset 7\n"
				  "\n"
				  "  rank                       2\n"
				  "  shapes\n"
				  "    - is whole yes, shape 1 2, offset 7\n"
				  "    - is whole no, shape 1 2, offset 7\n");
	free(text);
}
