/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the command: parsing each type, its bounds and error messages, all spellings of a
 * name, on the command line and in job files.
 */

#include "cli/jobs/jobs.h"
#include "cli/options/said.h"
#include "cli/tune/tune.h"

/* ---- A table with an option of each type ---- */

struct values {
	bool flag;
	uint64_t count, size, duration;
	double share, percent;
	unsigned choice, choices;
	const char *string;
	struct option_list list;
	bool wall;
};

static const char *const colours[] = {"red", "green", "blue", NULL};
static const char *const count_names[] = {"how-many", "number", NULL};
static const char *const not_with_size[] = {"count", NULL};

#define AT(field) offsetof(struct values, field)

static const struct option_spec specs[] = {
	{"flag", NULL, OPTION_FLAG, AT(flag), .help = "h"},
	{"count", "N", OPTION_COUNT, AT(count), .min = 2, .max = 1000, .aliases = count_names,
	 .help = "h"},
	{"size", "SIZE", OPTION_SIZE, AT(size), .min = 512, .max = UINT64_MAX, .multiple = 512,
	 .excludes = not_with_size, .help = "h"},
	{"duration", "TIME", OPTION_DURATION, AT(duration), .min = 1, .max = 86400000, .help = "h"},
	{"share", "SHARE", OPTION_SHARE, AT(share), .help = "h"},
	{"percent", "PERCENT", OPTION_PERCENT, AT(percent), .help = "h"},
	{"choice", "COLOUR", OPTION_CHOICE, AT(choice), .choices = colours, .help = "h"},
	{"choices", "COLOURS", OPTION_CHOICES, AT(choices), .choices = colours, .help = "h"},
	{"string", "TEXT", OPTION_STRING, AT(string), .help = "h"},
	{"list", "NAME", OPTION_LIST, AT(list), .help = "h"},
	{"always", NULL, OPTION_FLAG, AT(flag), .min = 1, .help = "h"},
	{"wall", NULL, OPTION_FLAG, AT(wall), .scope = OPTION_OF_FILE, .help = "h"},
	{"line-only", NULL, OPTION_FLAG, AT(wall), .scope = OPTION_OF_LINE, .help = "h"},
};
static const struct values defaults = {.count = 7, .size = 4096};
static const struct command_spec command = {
	.name = "paint",
	.operand = "FILE",
	.options = specs,
	.noptions = sizeof(specs) / sizeof(*specs),
	.defaults = &defaults,
};

static struct values values;
static struct options_given given;

#define ARGUMENTS_MAX 24

/* Parses words that NULL ends; operands are in `words` afterwards. */
static int parse_words(const char *const *typed)
{
	static char words[ARGUMENTS_MAX + 2][512], *argv[ARGUMENTS_MAX + 2] = {words[0]};
	int argc = 1;

	for (; typed[argc - 1]; argc++) {
		argv[argc] = words[argc];
		snprintf(words[argc], sizeof(words[argc]), "%s", typed[argc - 1]);
	}
	argv[argc] = NULL;
	values = defaults;
	return HEARD(options_parse(&command, argc, argv, &values, &given));
}

#define TYPED(...) parse_words((const char *const[]){__VA_ARGS__, NULL})

static void accepted(const char *argument)
{
	if (TYPED(argument))
		fail_msg("%s is refused: %s", argument, said);
	assert_string_equal(said, "");
}

static void refused(const char *argument, const char *why)
{
	if (TYPED(argument) != -EINVAL)
		fail_msg("%s is accepted", argument);
	assert_says(said, why);
	/* There is one message, which begins with the command's name. */
	assert_int_equal(strncmp(said, "nvswap: ", 8), 0);
	assert_ptr_equal(strchr(said, '\n') + 1, said + strlen(said));
}

static int set(const char *name, const char *value)
{
	static char copies[16][64]; /* lists are cut in it */
	static unsigned n;
	char *copy = value ? strcpy(copies[n++ % 16], value) : NULL;

	return HEARD(options_set(&command, name, copy, "a.ini:12", &values, &given));
}

static void begin_file(void)
{
	values = defaults;
	memset(&given, 0, sizeof(given));
}

/* ---- Types ---- */

TEST(flags_are_bare_or_0_or_1)
{
	accepted("--flag");
	assert_true(values.flag);
	accepted("--flag=0");
	assert_false(values.flag);
	refused("--flag=yes", "--flag yes: allowed are 0 and 1");
	refused("--flag=", "not empty");
	accepted("--always");
	accepted("--always=1");
	refused("--always=0", "--always 0: only 1 is supported");
}

TEST(counts_have_the_syntax_of_json)
{
	accepted("--count=2");
	assert_int_equal(values.count, 2);
	accepted("--count=2.5e1");
	assert_int_equal(values.count, 25);
	refused("--count=1", "--count 1: allowed is a whole number from 2 to 1000");
	refused("--count=1001", "from 2 to 1000");
	refused("--count=2.00000000000000000000001", "from 2 to 1000");
	refused("--count=1.e2", "from 2 to 1000");
	refused("--count=4k", "from 2 to 1000");
	refused("--count=18446744073709551618", "from 2 to 1000");
}

TEST(units_of_sizes_are_of_1024)
{
	static const char *const of_4k[] = {"4096", "4k", "4K", "4kb", "4KB", "4ki", "4KiB"};
	char text[32];

	for (size_t i = 0; i < sizeof(of_4k) / sizeof(*of_4k); i++) {
		snprintf(text, sizeof(text), "--size=%s", of_4k[i]);
		values.size = 0;
		accepted(text);
		assert_int_equal(values.size, 4096);
	}
	accepted("--size=2TiB");
	assert_int_equal(values.size, 2ull << 40);
	refused("--size=513", "a size from 512 bytes to 16 EiB");
	refused("--size=513", "that is a multiple of 512 bytes, written like");
	refused("--size=0", "a size from 512");
	refused("--size=4kk", "a size from 512");
	refused("--size=1.5k", "a size from 512");
	refused("--size=-4k", "a size from 512");
	refused("--size=16384p", "a size from 512");
}

TEST(durations_are_kept_in_milliseconds)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} times[] = {{"30", 30000},  {"30s", 30000},  {"500ms", 500},  {"2000us", 2},
		     {"5m", 300000}, {"1h", 3600000}, {"1d", 86400000}};
	char text[32];

	for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++) {
		snprintf(text, sizeof(text), "--duration=%s", times[i].text);
		accepted(text);
		assert_int_equal(values.duration, times[i].ms);
	}
	refused("--duration=500us", "a time in whole milliseconds from 1 ms to 86400 s");
	refused("--duration=2d", "86400 s");
	refused("--duration=3w", "whole milliseconds");
	refused("--duration=18446744073709551615h", "whole milliseconds");
}

TEST(shares_and_per_cent_have_their_bounds)
{
	accepted("--share=0.25");
	assert_true(values.share == 0.25);
	accepted("--share=1");
	refused("--share=0", "above 0 and up to 1");
	refused("--share=1.01", "above 0 and up to 1");
	refused("--share=.", "above 0 and up to 1");
	refused("--share=nan", "above 0 and up to 1");
	refused("--share=0x1p-1", "above 0 and up to 1");
	accepted("--percent=0");
	accepted("--percent=2.5");
	assert_true(values.percent == 2.5);
	accepted("--percent=100");
	refused("--percent=100.5", "from 0 to 100");
	refused("--percent=2%", "from 0 to 100");
}

TEST(an_unknown_choice_suggests_the_nearest)
{
	accepted("--choice=green");
	assert_int_equal(values.choice, 1);
	refused("--choice=gren", "allowed are red, green and blue; did you mean green?");
	refused("--choice=Blue", "did you mean blue?");
	accepted("--choices=blue,red");
	assert_int_equal(values.choices, 1u << 2 | 1u << 0);
	refused("--choices=red,", "allowed are red");
	refused("--choices=red,bleu", "allowed are red, green and blue");
	refused("--choices="
		"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		"allowed are red");
}

static void assert_items(unsigned n, const char *const *items)
{
	assert_int_equal(values.list.n, n);
	for (unsigned i = 0; i < n; i++)
		assert_string_equal(values.list.items[i], items[i]);
}

TEST(lists_go_on_and_split_at_colons)
{
	const char *words[NVS_PATHS_MAX + 2] = {NULL};

	assert_int_equal(TYPED("--list=/a", "--list", "/b:/c", "--list=d:e"), 0);
	assert_items(5, (const char *const[]){"/a", "/b", "/c", "d", "e"});
	refused("--list=a::b", "empty");
	refused("--list=a:", "empty");
	refused("--list=:", "empty");
	refused("--list=", "not empty");
	for (unsigned i = 0; i < NVS_PATHS_MAX; i++)
		words[i] = "--list=a";
	assert_int_equal(parse_words(words), 0);
	words[NVS_PATHS_MAX] = words[0];
	assert_int_equal(parse_words(words), -EINVAL);
	assert_says(said, "--list a: given more than 16 times");
}

TEST(names_have_aliases_and_both_dashes)
{
	accepted("--how_many=3");
	assert_int_equal(values.count, 3);
	accepted("--number=5");
	refused("--dur=3", "--dur is not an option of paint");
	refused("--cuont=3", "--cuont is not an option of paint; did you mean --count?");
	refused("--how_mnay=3", "did you mean --how-many?");
	refused("--wall", "--wall is only a key of job files");
	refused("--help=x", "--help takes no value");
	refused("--frobnicate", "see nvswap paint --help");
	refused("--string", "--string needs a value");
	/* An argument with one dash is named itself. */
	refused("-count=3", "-count is not an option of paint; did you mean --count?");
	refused("---share=1", "---share is not an option of paint; did you mean --share?");
	refused("-xyz=1", "-xyz is not an option of paint; see nvswap paint --help");
}

TEST(operands_stand_anywhere_and_conflicting_options_are_refused)
{
	assert_int_equal(TYPED("a.ini", "--flag", "-", "--", "--b"), 0);
	assert_int_equal(given.noperands, 3);
	assert_string_equal(given.operands[0], "a.ini");
	assert_string_equal(given.operands[1], "-");
	assert_string_equal(given.operands[2], "--b");
	assert_int_equal(TYPED("--size=4k", "--count=3"), -EINVAL);
	assert_says(said, "--size and --count exclude each other");
}

TEST(keys_of_files_are_the_same_options)
{
	begin_file();
	assert_int_equal(set("how-many", "3"), 0);
	assert_int_equal(set("flag", NULL), 0);
	assert_int_equal(set("wall", NULL), 0);
	assert_true(values.flag && values.wall && values.count == 3);
	assert_string_equal(given.text[1], "3");
	assert_string_equal(given.text[0], "1");
	assert_int_equal(set("flag", "0"), 0);
	assert_false(values.flag);
	assert_int_equal(set("nothing", "3"), -ENOENT);
	assert_string_equal(said, "");
	/* A later line replaces an earlier one. */
	assert_int_equal(set("list", "/a:/b") | set("list", "/c"), 0);
	assert_items(1, (const char *const[]){"/c"});
	assert_int_equal(set("size", "8k") | set("count", "3"), 0);
	assert_int_equal(values.size, defaults.size);
	assert_null(given.text[2]);
}

TEST(errors_of_files_begin_with_the_line)
{
	begin_file();
	assert_int_equal(set("how_many", "1"), -EINVAL);
	assert_says(said, "nvswap: a.ini:12: count=1: allowed is a whole number from 2 to 1000");
	assert_int_equal(set("count", NULL), -EINVAL);
	assert_says(said, "nvswap: a.ini:12: count needs a value that is not empty: N");
	assert_int_equal(set("count", ""), -EINVAL);
	assert_says(said, "not empty");
	assert_int_equal(set("line_only", "1"), -EINVAL);
	assert_says(said, "nvswap: a.ini:12: line_only is only a command-line option");
	assert_int_equal(values.count, defaults.count);
	assert_null(given.text[1]);
}

TEST(option_tables_are_complete)
{
	const struct command_spec *const commands[] = {&bench_command, &tune_command};

	for (unsigned c = 0; c < 2; c++)
		for (unsigned i = 0; i < commands[c]->noptions; i++) {
			const struct option_spec *spec = &commands[c]->options[i];

			assert_ptr_equal(options_find(commands[c], spec->name), spec);
			assert_non_null(spec->help);
			assert_int_equal(!spec->argument, spec->type == OPTION_FLAG);
			for (const char *const *name = spec->excludes; name && *name; name++)
				assert_non_null(options_find(commands[c], *name));
			for (const char *const *name = spec->aliases; name && *name; name++)
				assert_ptr_equal(options_find(commands[c], *name), spec);
		}
}
