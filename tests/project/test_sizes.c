/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structures of callers begin with their size. Programs built against a header with smaller
 * structures go on working, and so do those built against one with larger structures as long as
 * they use nothing that this library does not know. It needs nothing of the machine.
 */
#include "nvswap.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GUARD 0xa5

/* The end of a field: the size of the structure in a header that ended with it. */
#define THROUGH(type, field) (offsetof(type, field) + sizeof(((type *)NULL)->field))

/* The bytes from `size` on must still be the guard's. */
static void expect_unwritten(const void *structure, size_t size, size_t full)
{
	const unsigned char *bytes = structure;

	for (size_t i = size; i < full; i++)
		assert_int_equal(bytes[i], GUARD);
}

/* ---- struct nvs_error ---- */

/* A call that fails, with an error of that size. */
static void fail_with(struct nvs_error *error, size_t size)
{
	struct nvs_config config;

	memset(error, GUARD, sizeof(*error));
	error->size = size;
	nvs_config_init(&config);
	assert_int_equal(nvs_config_load(&config, "/nonexistent/ds_config.json", error), -ENOENT);
	assert_int_equal(error->size, size);
	nvs_config_free(&config);
}

static void an_error_of_any_size_is_written_within_it(void **state)
{
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	for (size_t size = sizeof(error.size); size <= sizeof(error); size++) {
		fail_with(&error, size);
		expect_unwritten(&error, size, sizeof(error));
		if (size >= THROUGH(struct nvs_error, code))
			assert_int_equal(error.code, -ENOENT);
		if (size > offsetof(struct nvs_error, text))
			assert_true(strlen(error.text) < size - offsetof(struct nvs_error, text));
	}
	assert_non_null(strstr(error.text, "/nonexistent/ds_config.json"));
}

static void an_error_without_a_size_is_not_written(void **state)
{
	struct nvs_error error = {.size = sizeof(error)};

	(void)state;
	for (size_t size = 0; size < THROUGH(struct nvs_error, code); size++) {
		fail_with(&error, size);
		expect_unwritten(&error, sizeof(error.size), sizeof(error));
	}
}

static void an_error_larger_than_the_librarys_keeps_its_tail(void **state)
{
	struct {
		struct nvs_error known;
		unsigned char unknown[64];
	} error;

	(void)state;
	memset(&error, GUARD, sizeof(error));
	fail_with(&error.known, sizeof(error));
	expect_unwritten(&error, sizeof(error.known), sizeof(error));
	assert_int_equal(error.known.code, -ENOENT);
	assert_non_null(strstr(error.known.text, "/nonexistent/ds_config.json"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_error_of_any_size_is_written_within_it),
		cmocka_unit_test(an_error_without_a_size_is_not_written),
		cmocka_unit_test(an_error_larger_than_the_librarys_keeps_its_tail),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
