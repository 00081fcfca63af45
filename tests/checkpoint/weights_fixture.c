/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/weights_fixture.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#include "support/support.h"

void weights_file(const char *path, const char *header, size_t padded, const void *data,
		  size_t nbytes)
{
	size_t length = strlen(header), all = padded > length ? padded : length;
	uint64_t first = htole64(all);
	FILE *file = fopen(path, "we");

	MUST(file && fwrite(&first, sizeof(first), 1, file) == 1);
	MUST(fprintf(file, "%-*s", (int)all, header) == (int)all);
	MUST(!nbytes || fwrite(data, nbytes, 1, file) == 1);
	MUST(!fclose(file));
}
