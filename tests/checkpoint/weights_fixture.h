/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of .safetensors files: files with headers as they are given. */
#ifndef TESTS_CHECKPOINT_WEIGHTS_FIXTURE_H
#define TESTS_CHECKPOINT_WEIGHTS_FIXTURE_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

/* Writes a file of this header, with spaces behind it up to `padded` bytes, and the data. */
void weights_file(const char *path, const char *header, size_t padded, const void *data,
		  size_t nbytes);
/* Writes a file of the tensors t<from> to t<to - 1> of U8, of these lengths and with the contents
 * of their number (fill), side by side behind a header of an odd length. */
void weights_make(const char *path, const uint64_t *lengths, size_t from, size_t to, size_t padded);

/* Finds the tensors t0 to t<n - 1> of an engine. */
void weights_find(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n);
/* Reads a tensor, which stays in the pool. */
int weights_read(struct nvs_engine *engine, struct nvs_tensor *tensor, struct nvs_error *error);

#endif
