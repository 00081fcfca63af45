/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests that call every public function: one object of each kind, in host memory but
 * for the file.
 */
#ifndef TESTS_PROJECT_OBJECTS_FIXTURE_H
#define TESTS_PROJECT_OBJECTS_FIXTURE_H

#include "nvswap.h"
#include "support/support.h"

extern struct nvs_config *config;
extern struct nvs_engine *engine;
extern struct nvs_tensor *tensor;
extern struct nvs_optimizer *optimizer;
extern struct nvs_aio *aio;
extern struct nvs_file *file;

/* Opens them; the tensor and the optimizer's only group have `numel` elements of F32. */
void objects_open(uint64_t numel);
/* Closes them, and removes the file: 0, or -1 if that fails. */
int objects_close(void);

#endif
