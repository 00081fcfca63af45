/* SPDX-License-Identifier: Apache-2.0 */
/* Text from outside is shown by a terminal and not obeyed: in errors, in the log and in JSON. */
#include "base/error.h"
#include "base/json/write.h"
#include "base/text.h"
#include "support/support.h"

static const struct {
	const char *from, *visible;
} texts[] = {
	{"", ""},
	{"layer.0 \303\244 \342\202\254", "layer.0 \303\244 \342\202\254"},
	{"a\033[2Jb", "a\\x1b[2Jb"},
	{"a\nb\177", "a\\x0ab\\x7f"},
	{"\302\23331m", "\\xc2\\x9b31m"},	   /* CSI, U+009B */
	{"\342\200\256cba", "\\xe2\\x80\\xaecba"}, /* right-to-left override, U+202E */
	{"\342\201\246", "\\xe2\\x81\\xa6"},	   /* U+2066 */
	{"\23331m", "\\x9b31m"},		   /* not UTF-8 */
	{"\303", "\\xc3"},
};

TEST(control_characters_are_visible)
{
	char buffer[64];

	for (size_t i = 0; i < COUNT(texts); i++)
		assert_string_equal(
			visible_text(texts[i].from, strlen(texts[i].from), buffer, sizeof(buffer)),
			texts[i].visible);
}

TEST(visible_text_ends_with_a_whole_character)
{
	char buffer[6];

	assert_string_equal(visible_text("abc\033", 4, buffer, 6), "abc");
	assert_string_equal(visible_text("abc\342\202\254", 6, buffer, 6), "abc");
	assert_string_equal(visible_text("a\033", 2, buffer, 6), "a\\x1b");
	assert_string_equal(visible_text("a", 1, buffer, 1), "");
}

TEST(a_suffix_is_the_end_of_a_text)
{
	assert_true(text_ends_with("a.pt", ".pt") && text_ends_with(".pt", ".pt"));
	assert_true(text_ends_with("a", ""));
	assert_false(text_ends_with("pt", ".pt") || text_ends_with("a.pt.partial", ".pt"));
}

TEST(an_error_obeys_no_name)
{
	struct nvs_error error = {.size = sizeof(error)};

	error_about(&error, -5, "a\033b", 0, 0, "tensor %s failed", "a\033b");
	assert_string_equal(error.text, "tensor a\\x1bb failed");
	assert_string_equal(error.subject, "a\033b");
}

static void take_text(void *arg, enum nvs_log_level level, const char *text)
{
	(void)level;
	snprintf(arg, 64, "%s", text);
}

TEST(the_log_obeys_no_name)
{
	char text[64] = "";
	struct nvs_log log = {.fn = take_text, .arg = text};

	log_say(&log, NVS_LOG_ERROR, "tensor %s", "\342\200\256x");
	assert_string_equal(text, "tensor \\xe2\\x80\\xaex");
}

TEST(json_escapes_what_a_terminal_would_obey)
{
	char *text = NULL;
	size_t nbytes = 0;
	struct json_writer json = {.file = open_memstream(&text, &nbytes)};

	json_open_list(&json, NULL);
	json_text(&json, NULL, "\302\233m\342\200\256\177\033\303\244");
	json_close_list(&json);
	fclose(json.file);
	assert_non_null(strstr(text, "\"\\u009Bm\\u202E\\u007F\\u001B\303\244\""));
	free(text);
}
