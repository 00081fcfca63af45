/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pins belong to the calls that make them: several owners of one tensor, and reads that fail.
 */
#include "swap/swap_fixture.h"

ONE_ENGINE

#define PART (64 * KIB)

static void open_with_stored(struct nvs_tensor **t, size_t n)
{
	OPEN(f, .place = PLACE_DISK, .simulated = true);
	tensors_make(f, "t", PART, n, t);
}

TEST(a_failed_read_is_reported_to_each_pin_and_ends_no_later_one)
{
	struct nvs_tensor *t;
	uint64_t a, b, again;

	open_with_stored(&t, 1);
	sim_hold(f->sim, SIM_READS);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &a, &f->error));
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &b, &f->error));
	sim_go(f->sim, SIM_READS);
	FAILS(f, -EIO, "t0: reading /", nvs_tensor_wait, &t, 1, a, -1);
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &again, &f->error));
	OK(f, nvs_tensor_wait(f->engine, &t, 1, again, -1, &f->error));
	/* B gets the error of its own read, and has nothing to release. */
	FAILS(f, -EIO, "t0: reading /", nvs_tensor_wait, &t, 1, b, -1);
	OK(f, nvs_tensor_release(f->engine, &t, 1, b, NVS_CLEAN, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 1);
	OK(f, nvs_tensor_wait(f->engine, &t, 1, again, 0, &f->error));
	assert_true(filled(nvs_tensor_data(t), PART, 0));
	OK(f, nvs_tensor_release(f->engine, &t, 1, again, NVS_CLEAN, &f->error));
	STATE(f, t, NVS_RESIDENT, false, 0);
}

TEST(a_failed_read_is_reported_while_a_later_one_is_in_flight)
{
	struct nvs_tensor *t;
	uint64_t a, b;

	open_with_stored(&t, 1);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &a, &f->error));
	assert_int_equal(nvs_tensor_wait(f->engine, &t, 1, a, -1, NULL), -EIO);
	sim_hold(f->sim, SIM_READS);
	OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &b, &f->error));
	FAILS(f, -EIO, "t0: reading /", nvs_tensor_wait, &t, 1, a, -1);
	OK(f, nvs_tensor_release(f->engine, &t, 1, a, NVS_CLEAN, &f->error));
	sim_go(f->sim, SIM_READS);
	OK(f, nvs_tensor_wait(f->engine, &t, 1, b, -1, &f->error));
	OK(f, nvs_tensor_release(f->engine, &t, 1, b, NVS_CLEAN, &f->error));
}

TEST(one_release_unpins_the_rest_of_a_failed_batch)
{
	struct nvs_tensor *t[3];
	uint64_t pin;

	open_with_stored(t, 3);
	tensor_compare(f, t[0], 0);
	tensor_compare(f, t[2], 2);
	sim_fail(f->sim, NVS_READ, 0, EIO, 1);
	OK(f, nvs_tensor_swap_in(f->engine, t, 3, 0, &pin, &f->error));
	FAILS(f, -EIO, "t1: reading /", nvs_tensor_wait, t, 3, pin, -1);
	STATE(f, t[0], NVS_RESIDENT, false, 1);
	STATE(f, t[1], NVS_ON_DRIVE, false, 0);
	assert_int_equal(stats_of(f).pool.used, 2 * PART);
	OK(f, nvs_tensor_release(f->engine, t, 3, pin, NVS_CLEAN, &f->error));
	STATE(f, t[0], NVS_RESIDENT, false, 0);
	STATE(f, t[2], NVS_RESIDENT, false, 0);
	OK(f, nvs_tensor_swap_in(f->engine, t, 3, 0, &pin, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, 3, pin, -1, &f->error));
	for (size_t i = 0; i < 3; i++) {
		STATE(f, t[i], NVS_RESIDENT, false, 1);
		assert_true(filled(nvs_tensor_data(t[i]), PART, i));
	}
	OK(f, nvs_tensor_release(f->engine, t, 3, pin, NVS_CLEAN, &f->error));
}

TEST(a_pin_is_ended_by_its_own_number_alone)
{
	struct nvs_tensor *t[2];
	uint64_t a, b;

	open_with_stored(t, 2);
	OK(f, nvs_tensor_swap_in(f->engine, t, 2, 0, &a, &f->error));
	OK(f, nvs_tensor_swap_in(f->engine, t, 1, 0, &b, &f->error));
	OK(f, nvs_tensor_wait(f->engine, t, 2, a, -1, &f->error));
	FAILS(f, -EINVAL, "t1 is not pinned by pin", nvs_tensor_release, t, 2, b, NVS_CLEAN);
	STATE(f, t[0], NVS_RESIDENT, false, 2);
	OK(f, nvs_tensor_release(f->engine, t, 2, a, NVS_CLEAN, &f->error));
	FAILS(f, -EINVAL, "t0 is not pinned by pin", nvs_tensor_release, t, 1, a, NVS_CLEAN);
	FAILS(f, -EINVAL, "t0", nvs_tensor_wait, t, 1, a, -1);
	FAILS(f, -EINVAL, "t0", nvs_tensor_release, t, 1, 0, NVS_CLEAN);
	FAILS(f, -EINVAL, "t0", nvs_tensor_release, t, 1, UINT64_MAX, NVS_CLEAN);
	STATE(f, t[0], NVS_RESIDENT, false, 1);
	OK(f, nvs_tensor_release(f->engine, t, 1, b, NVS_CLEAN, &f->error));
}

TEST(a_tensor_has_any_number_of_pins)
{
	struct nvs_tensor *t;
	uint64_t pins[100], seed = seed_of_run();

	open_with_stored(&t, 1);
	for (size_t i = 0; i < 100; i++) {
		OK(f, nvs_tensor_swap_in(f->engine, &t, 1, 0, &pins[i], &f->error));
		OK(f, nvs_tensor_wait(f->engine, &t, 1, pins[i], -1, &f->error));
	}
	STATE(f, t, NVS_RESIDENT, false, 100);
	for (size_t n = 100; n; n--) {
		size_t k = below(&seed, n);

		OK(f, nvs_tensor_release(f->engine, &t, 1, pins[k], NVS_CLEAN, &f->error));
		assert_int_equal(nvs_tensor_release(f->engine, &t, 1, pins[k], NVS_CLEAN, NULL),
				 -EINVAL);
		pins[k] = pins[n - 1];
	}
	STATE(f, t, NVS_RESIDENT, false, 0);
}

TEST(a_call_that_fails_makes_no_pin)
{
	uint64_t pin = 1;
	struct nvs_tensor *t = OPEN_ONE(f, PART, .place = PLACE_DISK);

	FAILS(f, -ENODATA, "t", nvs_tensor_swap_in, &t, 1, 0, &pin);
	assert_int_equal(pin, 0);
	FAILS(f, -EINVAL, "pin", nvs_tensor_pin, &t, 1, 0, NULL);
	STATE(f, t, NVS_EMPTY, false, 0);
}
