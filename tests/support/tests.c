/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tests of the files that a program consists of, and the main() of a program with one of them.
 */
#include "support/tests.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILES_MAX 200

static struct group {
	char name[64]; /* of the file, without .c */
	struct CMUnitTest *tests;
	size_t n;
	CMFixtureFunction setup, teardown;	     /* of the group */
	CMFixtureFunction each_setup, each_teardown; /* of tests that have none */
	void (*finishes[2])(void);
} groups[FILES_MAX];

static struct group *group_of(const char *file)
{
	const char *name = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
	int length = (int)strcspn(name, ".");
	struct group *group = groups;

	while (*group->name &&
	       ((int)strlen(group->name) != length || strncmp(group->name, name, (size_t)length)))
		if (++group == groups + FILES_MAX)
			abort();
	snprintf(group->name, sizeof(group->name), "%.*s", length, name);
	return group;
}

void tests_add(const char *file, struct CMUnitTest test)
{
	struct group *group = group_of(file);

	group->tests = realloc(group->tests, (group->n + 1) * sizeof(test));
	if (!group->tests)
		abort();
	group->tests[group->n++] = test;
}

void tests_each(const char *file, CMFixtureFunction setup, CMFixtureFunction teardown)
{
	struct group *group = group_of(file);

	group->each_setup = setup;
	group->each_teardown = teardown;
}

void tests_around(const char *file, CMFixtureFunction setup, CMFixtureFunction teardown)
{
	struct group *group = group_of(file);

	group->setup = setup;
	group->teardown = teardown;
}

void tests_finish(const char *file, void (*finish)(void))
{
	struct group *group = group_of(file);

	group->finishes[group->finishes[0] != NULL] = finish;
}

void tests_passed(const char *file)
{
	const struct group *group = group_of(file);

	for (int i = 0; i < 2; i++)
		if (group->finishes[i])
			group->finishes[i]();
}

int tests_run(const char *file)
{
	const struct group *group = group_of(file);

	for (size_t i = 0; i < group->n; i++) {
		if (group->tests[i].setup_func || group->tests[i].teardown_func)
			continue;
		group->tests[i].setup_func = group->each_setup;
		group->tests[i].teardown_func = group->each_teardown;
	}
	return _cmocka_run_group_tests(group->name, group->tests, group->n, group->setup,
				       group->teardown);
}

__attribute__((weak)) int main(void)
{
	int failed = 0;

	for (const struct group *group = groups; *group->name; group++)
		if (group->n)
			failed += tests_run(group->name);
	return failed;
}
