/* SPDX-License-Identifier: Apache-2.0 */
#include "system/soak.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MINUTES_MAX 100000.0

bool soak_parse(int argc, char **argv, struct soak_options *options)
{
	char none = 0, *end = &none;

	*options = (struct soak_options){.minutes = 3, .seed = (uint64_t)time(NULL)};
	if (argc < 2 || strcmp(argv[1], "soak") != 0)
		return false;
	for (int i = 2; i < argc; i += 2) {
		if (i + 1 == argc)
			return false;
		if (!strcmp(argv[i], "--minutes"))
			options->minutes = strtod(argv[i + 1], &end);
		else if (!strcmp(argv[i], "--seed"))
			options->seed = strtoull(argv[i + 1], &end, 10);
		else
			return false;
		if (*end || end == argv[i + 1] || !(options->minutes <= MINUTES_MAX))
			return false;
	}
	return true;
}
