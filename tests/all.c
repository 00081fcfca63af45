/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program that holds all tests but those that replace a function for the whole program. It is
 * called by the name of a test (build/tests/pool/test_pool links to it), or gets that name as its
 * first argument. The Makefile lists the names in groups.h, and renames main() of a test that has
 * one to main_of_NAME.
 */
#include <libgen.h>
#include <stdio.h>
#include <string.h>

#include "support/tests.h"

/* As libc does, pass arguments to each main, whether it takes any or not. */
#define GROUP(name) __attribute__((weak)) int main_of_##name(int argc, char **argv);
#include "groups.h"
#undef GROUP

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
} groups[] = {
#define GROUP(name) {#name, main_of_##name},
#include "groups.h"
#undef GROUP
};

int main(int argc, char **argv)
{
	const char *name = basename(argv[0]);

	if (!strcmp(name, "all") && argc > 1) {
		argc--;
		argv++;
		name = argv[0];
	}
	for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
		if (!strcmp(groups[i].name, name))
			return groups[i].run ? groups[i].run(argc, argv) : tests_run(name);
	fprintf(stderr, "%s: no such test\n", name);
	return 2;
}
