/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer state that a seed and a generation determine, written and compared in bulk without
 * memory for a copy.
 */
#ifndef CLI_MODES_CHECKPOINT_SEEDED_STATE_H
#define CLI_MODES_CHECKPOINT_SEEDED_STATE_H

#include "nvswap.h"

/* Writes all state. Errors are those of nvs_optimizer_import. */
int state_fill(struct nvs_optimizer *optimizer, uint64_t seed, uint64_t generation,
	       struct nvs_error *error);
/*
 * Reads all state and counts the values in *differences that state_fill would not have written.
 * -EBADMSG with the first one in *error, and errors of nvs_optimizer_export.
 */
int state_compare(struct nvs_optimizer *optimizer, uint64_t seed, uint64_t generation,
		  uint64_t *differences, struct nvs_error *error);

#endif
