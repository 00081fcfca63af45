/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of public calls on a simulated drive with faults, against reference models
 * (see history.h). A failing history is printed as a seed and its few remaining operations, with
 * the command that replays them: `test_histories MODEL SEED LENGTH [OPERATIONS]`. `test_histories
 * soak [--minutes N] [--seed N]` plays new histories for that time.
 */
#include "support/history/history.h"
#include "swap/swap_fixture.h"
#include "system/soak.h"

#define MODELS 4
static const struct history_model *const models[] = {&history_swap,	 &history_optim,
						     &history_aio,	 &history_room,
						     &history_swap_real, &history_swap_mistaken};

static char text[65536];

static void print_counts(const char *what)
{
	const struct history_counts *counts = history_counts();

	print_message("%s: %" PRIu64 " histories, %" PRIu64 " operations, %" PRIu64
		      " I/Os of which %" PRIu64 " had a fault, %" PRIu64 " errors of the drive's\n",
		      what, counts->histories, counts->operations, counts->ios, counts->faults,
		      counts->errors);
}

static void play(const struct history_model *model, uint32_t n, uint32_t length)
{
	struct history first = {model, seed_of_run() * 1000003, length, NULL}, found;

	history_forget_counts();
	if (!history_play(&first, n, &found, text, sizeof(text))) {
		fputs(text, stdout);
		fail();
	}
	print_counts(model->name);
}

TEST(swaps_agree_with_the_model)
{
	play(&history_swap, at_length(SANITIZED ? 40 : 360, SANITIZED ? 10 : 48), 250);
}

TEST(swaps_on_real_drives_agree_with_the_model)
{
	play(&history_swap_real, at_length(SANITIZED ? 40 : 120, SANITIZED ? 16 : 32), 500);
}

TEST(steps_agree_with_the_model)
{
	play(&history_optim, at_length(SANITIZED ? 20 : 100, SANITIZED ? 5 : 20), 100);
}

TEST(requests_agree_with_the_model)
{
	play(&history_aio, at_length(SANITIZED ? 40 : 300, SANITIZED ? 10 : 48), 200);
}

TEST(calls_that_wait_for_room_end_within_a_bound_of_work_by_others)
{
	play(&history_room, at_length(SANITIZED ? 20 : 100, SANITIZED ? 5 : 20), 20);
}

/* Directories have random names; mask them. */
static void mask_directories(char *said)
{
	static const char prefix[] = "/nvswap-test-";

	while ((said = strstr(said, prefix)) != NULL) {
		said += strlen(prefix);
		memset(said, 'X', strnlen(said, strlen("XXXXXX")));
	}
}

TEST(a_history_is_determined_by_its_seed)
{
	static char again[sizeof(text)];
	struct history history = {.length = 150};
	uint64_t seed = seed_of_run() * 77;

#ifdef __SANITIZE_THREAD__
	skip();
#endif
	for (uint64_t i = 0; i < at_length(SANITIZED ? 4 : 20, 4); i++) {
		history.model = models[i % MODELS];
		history.seed = seed + i;
		assert_true(history_play_into(&history, text, sizeof(text)));
		assert_true(history_play_into(&history, again, sizeof(again)));
		mask_directories(text);
		mask_directories(again);
		assert_string_equal(text, again);
	}
}

/* Runs the command that a failure names; returns its exit status. */
static int play_again(const char *words)
{
	char program[512] = "", command[1024];
	int status;

	assert_true(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
	snprintf(command, sizeof(command), "'%s' test_histories %s >/dev/null", program, words);
	status = system(command);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* The model's mistake needs two pins of a tensor with new contents, released dirty, and a read. */
TEST(a_failure_is_reduced_and_can_be_replayed)
{
	struct history first = {&history_swap_mistaken, 10, 250, NULL}, found;
	char numbers[256], words[300];

	/* Its threads take no turns there, so what a replay does depends on timing. */
#ifdef __SANITIZE_THREAD__
	skip();
#endif
	assert_false(history_play(&first, 20, &found, text, sizeof(text)));
	if (history_remaining(&found) > 6)
		print_message("%s\n", text);
	assert_in_range(history_remaining(&found), 1, 6);
	assert_non_null(strstr(text, "holds something else than its contents"));
	assert_non_null(strstr(text, "release dirty"));
	/* The printed command replays these operations, which fail again. */
	history_format(&found, numbers, sizeof(numbers));
	snprintf(words, sizeof(words), "swap-mistaken %" PRIu64 " 250 %s", found.seed, numbers);
	assert_non_null(strstr(text, words));
	assert_int_equal(play_again(words), EXIT_FAILURE);
	/* Without these operations, the history passes. */
	snprintf(words, sizeof(words), "swap-mistaken %" PRIu64 " 250 249", found.seed);
	assert_int_equal(play_again(words), EXIT_SUCCESS);
}

/* ---- The command line ---- */

static int play_one(int argc, char **argv)
{
	static bool left_out[100000];
	struct history history = {.left_out = left_out};

	for (size_t i = 0; i < LENGTH(models); i++)
		if (!strcmp(models[i]->name, argv[1]))
			history.model = models[i];
	history.seed = strtoull(argv[2], NULL, 10);
	history.length = (uint32_t)strtoul(argv[3], NULL, 10);
	if (!history.model || history.length > LENGTH(left_out) ||
	    (argc > 4 && !history_parse(argv[4], history.length, left_out)))
		return -1;
	return history_play_aloud(&history) ? EXIT_SUCCESS : EXIT_FAILURE;
}

static bool play_many(uint64_t seed)
{
	struct history first = {models[seed % MODELS], seed * 1000003, 1000, NULL}, found;
	bool well = history_play(&first, 64, &found, text, sizeof(text));

	if (!well)
		fputs(text, stdout);
	print_counts("so far");
	return well;
}

int main(int argc, char **argv)
{
	int rc;

	if (argc == 1)
		return tests_run(__FILE__);
	rc = soak(argc, argv, play_many);
	if (rc < 0 && strcmp(argv[1], "soak") != 0 && (argc == 4 || argc == 5))
		rc = play_one(argc, argv);
	if (rc < 0)
		fprintf(stderr, "test_histories [MODEL SEED LENGTH [OPERATIONS]]\n"
				"test_histories soak [--minutes N] [--seed N]\n");
	places_leave_all(NULL);
	return rc < 0 ? 2 : rc;
}
