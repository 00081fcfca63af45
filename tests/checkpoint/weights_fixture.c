/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/weights_fixture.h"

#include <endian.h>

#include "swap/swap_fixture.h"

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

void weights_make(const char *path, const uint64_t *lengths, size_t from, size_t to, size_t padded)
{
	char *header = calloc(1, (to - from) * 96 + 3), *data, *end = header;
	uint64_t at = 0;

	MUST(header);
	for (size_t i = from; i < to; i++) {
		end += sprintf(end,
			       "%c\"t%zu\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
			       "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
			       i == from ? '{' : ',', i, lengths[i], at, at + lengths[i]);
		at += lengths[i];
	}
	strcpy(end, "}");
	data = malloc(at + 1);
	MUST(data);
	at = 0;
	for (size_t i = from; i < to; i++) {
		fill(data + at, lengths[i], i);
		at += lengths[i];
	}
	weights_file(path, header, padded, data, at);
	free(data);
	free(header);
}

void weights_find(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n)
{
	char name[24];

	for (size_t i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "t%zu", i);
		tensors[i] = nvs_tensor_find(engine, name);
	}
}

int weights_read(struct nvs_engine *engine, struct nvs_tensor *tensor, struct nvs_error *error)
{
	uint64_t pin;
	int rc = nvs_tensor_swap_in(engine, &tensor, 1, -1, &pin, error);

	if (!rc)
		rc = nvs_tensor_wait(engine, &tensor, 1, pin, -1, error);
	return rc ? rc : nvs_tensor_release(engine, &tensor, 1, pin, NVS_CLEAN, error);
}
