/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests name themselves: TEST(what_is_promised) { ... } defines one, and the program runs those of
 * a file in their order, by cmocka. A file needs no list of its tests and no main().
 */
#ifndef TESTS_SUPPORT_TESTS_H
#define TESTS_SUPPORT_TESTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(name) TEST_WITH(name, NULL, NULL)
/* With functions that are called before the test and after it, or NULL. */
#define TEST_WITH(name, setup, teardown)                                                           \
	static void name(void **state);                                                            \
	static void run_##name(void **state)                                                       \
	{                                                                                          \
		name(state);                                                                       \
		tests_passed(__BASE_FILE__);                                                       \
	}                                                                                          \
	static __attribute__((constructor)) void add_##name(void)                                  \
	{                                                                                          \
		tests_add(__BASE_FILE__,                                                           \
			  (struct CMUnitTest){#name, run_##name, setup, teardown, NULL});          \
	}                                                                                          \
	static void name(__attribute__((unused)) void **state)
/* The same for each TEST() of the file. */
#define EACH_TEST(setup, teardown)                                                                 \
	static __attribute__((constructor)) void each_test(void)                                   \
	{                                                                                          \
		tests_each(__BASE_FILE__, setup, teardown);                                        \
	}
/* Functions that are called before the first test of the file and after its last one, or NULL. */
#define AROUND_TESTS(setup, teardown)                                                              \
	static __attribute__((constructor)) void around_##teardown(void)                           \
	{                                                                                          \
		tests_around(__BASE_FILE__, setup, teardown);                                      \
	}
/* A function that is called at the end of each test of the file that has not failed; two at most. */
#define AFTER_SUCCESS(finish)                                                                      \
	static __attribute__((constructor)) void after_success_##finish(void)                      \
	{                                                                                          \
		tests_finish(__BASE_FILE__, finish);                                               \
	}

void tests_add(const char *file, struct CMUnitTest test);
void tests_each(const char *file, CMFixtureFunction setup, CMFixtureFunction teardown);
void tests_around(const char *file, CMFixtureFunction setup, CMFixtureFunction teardown);
void tests_finish(const char *file, void (*finish)(void));
void tests_passed(const char *file);
/* Runs the tests of a file, given by its path or its name without .c; returns how many failed. */
int tests_run(const char *file);

#endif
