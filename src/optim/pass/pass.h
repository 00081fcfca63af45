/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass: what its threads share, and what happens to each tile.
 */
#ifndef OPTIM_PASS_PASS_H
#define OPTIM_PASS_PASS_H

#include "optim/internal.h"

struct pass {
	struct nvs_optimizer *optimizer;
	const struct pass_kind *kind;
	void *arg;
	bool reverse;

	pthread_mutex_t lock;
	pthread_cond_t fetched; /* for the landing thread: a tile was fetched, or the end */
	pthread_cond_t work; /* for the compute threads: a tile has landed or ended, or the end */
	pthread_cond_t progress; /* for the fetcher: a tile is finished */
	size_t nfetched;	 /* tiles in optimizer->queue, in walk order */
	size_t nlanded;		 /* of these, the first ones */
	bool all_fetched;
	size_t front;	      /* the first of them with elements that no thread has taken */
	uint64_t front_taken; /* elements of it that were taken */
	size_t nactive;	      /* tiles begun and not finished */
	size_t host;	      /* the next tile in host memory */
	uint64_t host_taken;

	uint64_t write_failures; /* the engine's, when the pass began */
	int rc;
	struct nvs_error error;
	struct pass_figures figures;
};

/* ---- tile.c ---- */
/* Decides what is done with each tile, before the threads start. */
void tasks_begin(const struct pass *pass);
/* Under the lock of the pass. */
void task_set(struct pass *pass, size_t tile, enum tile_task task);
/* No thread works on a tile any more. A failed pass leaves out tiles that it has not begun. */
void tasks_end(struct pass *pass);
/* Maps an offloaded tile to its position in the walk, and a position to its tile. */
size_t mirrored(const struct pass *pass, size_t i);
/* The last tiles of this walk are the first of the next. */
bool stays(const struct pass *pass, size_t tile);
/* Pins what the tile needs and starts to read it; waits for room. */
int tile_fetch(struct pass *pass, size_t i, struct nvs_error *error);
/* Waits until a fetched tile has landed. */
int tile_wait(const struct pass *pass, size_t i, struct nvs_error *error);
/* Ends a computed tile: writes, keeps or releases it. */
int tile_finish(struct pass *pass, size_t i, struct nvs_error *error);
/* Unpins a changed tile and starts to write it. */
int tile_write(struct pass *pass, struct tile *tile, struct nvs_error *error);
/* Releases a fetched tile that will not be computed. A failed read has unpinned it already. */
void tile_abandon(struct pass *pass, size_t i);

#endif
