/* SPDX-License-Identifier: Apache-2.0 */
#include "system/soak.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MINUTES_MAX 100000.0

int soak(int argc, char **argv, bool (*round)(uint64_t seed))
{
	uint64_t seed = (uint64_t)time(NULL);
	double minutes = 3;
	time_t until;
	bool well;

	if (argc % 2 || strcmp(argv[1], "soak") != 0)
		return -1;
	for (int i = 2; i < argc; i += 2) {
		char *end = argv[i + 1];

		if (!strcmp(argv[i], "--minutes"))
			minutes = strtod(argv[i + 1], &end);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], &end, 10);
		if (*end || end == argv[i + 1] || !(minutes <= MINUTES_MAX))
			return -1;
	}
	until = time(NULL) + (time_t)(minutes * 60);
	do {
		printf("seed %" PRIu64 "\n", seed);
		well = round(seed++);
		fflush(stdout);
	} while (well && time(NULL) < until);
	return well ? EXIT_SUCCESS : EXIT_FAILURE;
}
