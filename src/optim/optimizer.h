/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's functions for checkpoints and for tests, beside the public ones.
 */
#ifndef OPTIM_OPTIMIZER_H
#define OPTIM_OPTIMIZER_H

#include "config/config.h"
#include "nvswap.h"

struct engine_ops;
/* nvs_optimizer_open with this I/O engine instead of the configured one. */
int optimizer_open_with(struct nvs_optimizer **optimizer, const struct nvs_config *config,
			const struct nvs_group_spec *groups, size_t n,
			const struct nvs_optimizer_options *options, const struct engine_ops *ops,
			void *ops_arg, struct nvs_error *error);
/* nvs_optimizer_convert likewise. */
int optimizer_convert_with(const struct nvs_config *config, enum nvs_optimizer_state state,
			   struct nvs_state_conversion *result, const struct engine_ops *ops,
			   void *ops_arg, struct nvs_error *error);

/*
 * Transfers the state of whole tiles. A tile has the number of a flight from its first begin() to
 * the end of complete(); a flight has one tile at a time. Called by several threads concurrently,
 * each for flights of its own.
 */
struct tile_mover {
	/* Begins to transfer a run of a tile; called for each of its runs, of up to a whole tile.
	 * The arrays stay valid until complete() returns, which also returns the errors of this. */
	void (*begin)(void *arg, const struct nvs_state_run *run, unsigned flight);
	/* Waits for the transfers of the flight: 0 or a negative errno, which ends the pass. */
	int (*complete)(void *arg, unsigned flight);
	void *arg;
};

/* The number of flights, which are numbered from 0. */
unsigned optimizer_flights(const struct nvs_optimizer *optimizer);
/* As nvs_optimizer_export and nvs_optimizer_import. */
int optimizer_export_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error);
int optimizer_import_tiles(struct nvs_optimizer *optimizer, const struct tile_mover *mover,
			   struct nvs_error *error);

#endif
