/* SPDX-License-Identifier: Apache-2.0 */
/* One walk over a folder at a time. */
#include "swap/file_sum.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static XXH3_state_t *sum;

static int add_to_sum(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	static uint8_t bytes[64 * 1024];
	int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n;

	(void)ftw;
	XXH3_64bits_update(sum, path, strlen(path));
	XXH3_64bits_update(sum, &st->st_mode, sizeof(st->st_mode));
	XXH3_64bits_update(sum, &st->st_mtim, sizeof(st->st_mtim));
	XXH3_64bits_update(sum, &st->st_ctim, sizeof(st->st_ctim));
	while (fd >= 0 && (n = read(fd, bytes, sizeof(bytes))) > 0)
		XXH3_64bits_update(sum, bytes, (size_t)n);
	if (fd >= 0)
		close(fd);
	return 0;
}

uint64_t sum_of_files(const char *path)
{
	uint64_t result;

	sum = XXH3_createState();
	XXH3_64bits_reset(sum);
	if (nftw(path, add_to_sum, 16, FTW_PHYS)) {
		perror(path);
		abort();
	}
	result = XXH3_64bits_digest(sum);
	XXH3_freeState(sum);
	return result;
}
