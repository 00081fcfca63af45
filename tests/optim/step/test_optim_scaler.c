/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loss scale after each step of patterns of overflow. The expected values were derived by hand
 * from DeepSpeed's rules.
 */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <math.h>

#include "config/config.h"
#include "optim/step/numbers.h"
#include "support/tests.h"

ONE_OPTIMIZER

static void expect_update(struct scaler *scaler, const struct fp16_config *config, bool overflow,
			  int rc, double scale)
{
	assert_int_equal(scaler_update(scaler, config, overflow), rc);
	assert_true(scaler->scale == scale);
}

/* ---- Patterns ---- */

#define STAYS 100 /* added to the power: the step returns -ERANGE and the scale stays */

#define FP16(power, window, hysteresis_, consecutive, least)                                       \
	{                                                                                          \
		.enabled = true, .initial_scale_power = (power), .loss_scale_window = (window),    \
		.hysteresis = (hysteresis_), .consecutive_hysteresis = (consecutive),              \
		.min_loss_scale = (least)                                                          \
	}

struct pattern {
	const char *name;
	struct fp16_config config;
	const char *steps; /* 'X': overflow */
	int powers[12];	   /* log2 of the scale after each step */
};

static const struct pattern patterns[] = {
	{"windows of two double, overflows halve and begin a new window",
	 FP16(4, 2, 1, false, 1),
	 "....X..XX..",
	 {4, 5, 5, 6, 5, 5, 6, 5, 4, 4, 5}},
	{"windows of one double at each step, down to the least and up again",
	 FP16(0, 1, 1, false, 0.25),
	 ".XXXX.X",
	 {1, 0, -1, -2, STAYS - 2, -1, -2}},
	{"windows of four take four steps",
	 FP16(7, 4, 1, false, 1),
	 "........X",
	 {7, 7, 7, 8, 8, 8, 8, 9, 8}},
	{"a refused step is not counted",
	 FP16(1, 2, 1, false, 1),
	 "XX.X..",
	 {0, STAYS, 0, STAYS, 1, 1}},
	{"hysteresis two is spent once, and comes back with a window",
	 FP16(8, 4, 2, false, 1),
	 "XXX....XX.X",
	 {8, 7, 6, 6, 6, 6, 7, 7, 6, 6, 5}},
	{"hysteresis two, consecutive, comes back with a step",
	 FP16(8, 4, 2, true, 1),
	 "X.X.XXX.XX",
	 {8, 8, 8, 8, 8, 7, 6, 6, 6, 5}},
	{"hysteresis three is spent twice, and comes back with a window",
	 FP16(10, 2, 3, false, 1),
	 "XXXX.X..XXX",
	 {10, 10, 9, 8, 8, 7, 7, 8, 8, 8, 7}},
	{"hysteresis three, consecutive, comes back with a step",
	 FP16(6, 4, 3, true, 1),
	 "XX.XXX....X",
	 {6, 6, 6, 6, 6, 5, 5, 5, 5, 6, 6}},
	{"an overflow that hysteresis lets pass begins a new window too",
	 FP16(5, 2, 3, false, 1),
	 "..X..",
	 {5, 6, 6, 6, 7}},
	{"with hysteresis spent the least scale is refused for good",
	 FP16(3, 100, 2, false, 4),
	 "XXXX.X",
	 {3, 2, STAYS + 2, STAYS + 2, 2, STAYS + 2}},
	{"hysteresis left lets an overflow pass at the least scale",
	 FP16(0, 100, 2, true, 1),
	 "X.XX",
	 {0, 0, 0, STAYS}},
	{"a scale that begins below the least is raised to it",
	 FP16(0, 100, 1, false, 8),
	 "XX",
	 {3, STAYS + 3}},
};

TEST(the_scale_follows_the_pattern_of_overflows)
{
	static const struct group one[] = {{"a", 5, NVS_F32}};

	for (unsigned i = 0; i < COUNT(patterns); i++) {
		uint64_t taken = 0;

		optim_renew(o, one, 1);
		o->offload->device = NVS_DEVICE_CPU;
		o->config.fp16 = patterns[i].config;
		DONE(o, optim_open(o));
		for (unsigned s = 0; patterns[i].steps[s]; s++) {
			bool overflow = patterns[i].steps[s] == 'X';
			int power = patterns[i].powers[s], rc;
			bool stays = power >= STAYS - 10;
			double scale = nvs_optimizer_loss_scale(o->optimizer);

			optim_lend(o, s, scale);
			if (overflow)
				((float *)o->gradients[0])[s % 5] = s % 2 ? INFINITY : NAN;
			rc = CALL(o, step, NULL, &o->result);
			assert_true(o->result.skipped == overflow && o->result.loss_scale == scale);
			taken += !overflow;
			assert_int_equal(o->result.step, taken);
			scale = nvs_optimizer_loss_scale(o->optimizer);
			if (rc != (stays ? -ERANGE : 0) ||
			    scale != ldexp(1, stays ? power - STAYS : power))
				fail_msg("%s: step %u: %d, scale %g", patterns[i].name, s, rc,
					 scale);
		}
	}
}

TEST(min_loss_scale_need_not_be_a_power_of_two)
{
	struct fp16_config config = FP16(3, 1, 1, false, 3);
	struct scaler scaler = scaler_init(&config);

	expect_update(&scaler, &config, true, 0, 4);
	expect_update(&scaler, &config, true, 0, 3);
	expect_update(&scaler, &config, true, -ERANGE, 3);
	expect_update(&scaler, &config, false, 0, 6);
}

TEST(defaults_begin_at_65536_and_double_every_thousand_steps)
{
	struct nvs_config config;
	struct scaler scaler;

	config_init(&config);
	config.fp16.enabled = true;
	scaler = scaler_init(&config.fp16);
	for (unsigned i = 0; i < 999; i++) {
		expect_update(&scaler, &config.fp16, false, 0, 65536);
	}
	expect_update(&scaler, &config.fp16, false, 0, 131072);
	/* The first overflow spends hysteresis, the second halves the scale. */
	expect_update(&scaler, &config.fp16, true, 0, 131072);
	expect_update(&scaler, &config.fp16, true, 0, 65536);
	config_free(&config);
}

/* Gradients are divided by it in fp32: 1 / scale is finite and not 0. */
TEST(the_scale_stays_within_fp32)
{
	struct fp16_config config = FP16(126, 1, 1, false, 0);
	struct scaler scaler = scaler_init(&config);

	expect_update(&scaler, &config, false, 0, 0x1p127);
	expect_update(&scaler, &config, false, 0, 0x1p127);
	config.initial_scale_power = 1;
	scaler = scaler_init(&config);
	for (int power = 0; power >= -24; power--)
		expect_update(&scaler, &config, true, 0, ldexp(1, power));
	expect_update(&scaler, &config, true, -ERANGE, 0x1p-24);
}

/* Only the updates since the last overflow matter. */
TEST(the_largest_count_of_updates_changes_no_window)
{
	struct fp16_config config = FP16(4, 3, 1, false, 1);

	for (int64_t since = 1; since <= 4; since++) {
		struct scaler scaler = scaler_init(&config), early = scaler;

		scaler.iteration = INT64_C(1) << 53;
		scaler.last_overflow = scaler.iteration - since;
		early.iteration = since - 1;
		for (unsigned i = 0; i < 10; i++) {
			assert_int_equal(scaler_update(&scaler, &config, i == 5), 0);
			assert_int_equal(scaler_update(&early, &config, i == 5), 0);
			assert_true(scaler.scale == early.scale);
			assert_true(scaler.iteration <= INT64_C(1) << 53);
			assert_true(scaler.last_overflow < scaler.iteration);
		}
	}
}

TEST(hysteresis_lowered_between_runs_takes_effect)
{
	struct fp16_config config = FP16(4, 10, 3, false, 1);
	struct scaler scaler = scaler_init(&config);

	config.hysteresis = 1;
	expect_update(&scaler, &config, true, 0, 8);
}
