/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the tensors of a model where they lie, one after another through the pool, and prints the
 * sum of the bytes of each. Those that come next are read while one is summed.
 *
 * read_weights MODEL      a .safetensors file, an index of several, or a folder of Hugging Face
 */
#include <nvswap.h>
#include <stdio.h>

enum { AHEAD = 4 };

struct reader {
	struct nvs_engine *engine;
	struct nvs_error error;
};

/* Each function below returns 0, or a negative errno with the reason in reader->error. */

static struct nvs_tensor *tensor_at(struct reader *reader, size_t i)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};

	if (nvs_engine_get_stored(reader->engine, i, &stored))
		return NULL;
	return nvs_tensor_find(reader->engine, stored.name);
}

static int print_sum(struct reader *reader, struct nvs_tensor *tensor)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};
	unsigned long long sum = 0;
	uint64_t pin;
	int rc = nvs_tensor_swap_in(reader->engine, &tensor, 1, -1, &pin, &reader->error);

	if (!rc)
		rc = nvs_tensor_wait(reader->engine, &tensor, 1, pin, -1, &reader->error);
	if (rc || nvs_tensor_get_info(reader->engine, tensor, &info))
		return rc;
	for (uint64_t i = 0; i < info.nbytes; i++)
		sum += ((const unsigned char *)nvs_tensor_data(tensor))[i];
	printf("%-50s %-8s %12llu bytes, sum %llu\n", info.name, nvs_dtype_name(info.dtype),
	       (unsigned long long)info.nbytes, sum);
	return nvs_tensor_release(reader->engine, &tensor, 1, pin, NVS_CLEAN, &reader->error);
}

static int print_sums(struct reader *reader)
{
	struct nvs_tensor *tensor;
	int rc = 0;

	for (size_t i = 0; !rc && (tensor = tensor_at(reader, i)); i++) {
		struct nvs_tensor *next = tensor_at(reader, i + AHEAD);

		rc = print_sum(reader, tensor);
		/* What does not fit is read when its turn comes. */
		if (!rc && next && nvs_tensor_prefetch(reader->engine, &next, 1, NULL) < 0)
			break;
	}
	return rc;
}

int main(int argc, char **argv)
{
	struct reader reader = {.error = {.size = sizeof(reader.error)}};
	const char *path = argc == 2 ? argv[1] : NULL;
	struct nvs_config *config = NULL;
	int rc;

	if (!path) {
		fprintf(stderr, "usage: read_weights MODEL\n");
		return 2;
	}
	rc = nvs_config_open(&config, &reader.error);
	if (!rc)
		rc = nvs_engine_open_files(&reader.engine, config, &path, 1, NULL, &reader.error);
	if (!rc)
		rc = print_sums(&reader);
	if (rc)
		fprintf(stderr, "%s\n", reader.error.text);
	if (nvs_engine_close(reader.engine, &reader.error))
		rc = 1;
	nvs_config_close(config);
	return rc ? 1 : 0;
}
