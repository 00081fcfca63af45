/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `nvswap store export` and `import` need for either kind of store: settings that need no
 * configuration file, and the report.
 */
#ifndef CLI_STORE_COPY_H
#define CLI_STORE_COPY_H

#include <errno.h>

#include "cli/store/store.h"

/* What is copied, and how it went. */
struct copy {
	const struct store_job *job;
	struct nvs_store_place place;
	bool universal;		    /* the checkpoint is a directory */
	uint64_t stored, largest;   /* bytes of the store's tensors; of one */
	uint64_t n, nbytes, commit; /* tensors, or groups of an optimizer */
	uint64_t step;		    /* of an optimizer */
	struct nvs_error *error;
};

static inline int copy_no_memory(const struct copy *copy)
{
	*copy->error = (struct nvs_error){
		.size = sizeof(*copy->error), .code = -ENOMEM, .text = "no memory for the tensors"};
	return -ENOMEM;
}

/* ---- copy_open.c ---- */

/* The pool for data of `total` bytes that moves in pieces of up to `largest`. */
uint64_t copy_pool_bytes(uint64_t total, uint64_t largest);
/* A configuration for the store: kept, or read alone. Close it in any case. */
int copy_configure(const struct copy *copy, bool keep, uint64_t pool, struct nvs_config **config);
/* Passes on what opening the store returned; after -EBUSY the error tells which process has it. */
int copy_opened(const struct copy *copy, int rc);

/* ---- copy_parameters.c, copy_optimizer.c ---- */

/*
 * Copy the store's contents to the checkpoint of --to, or fill it with those of --from, and commit
 * these as a whole or not at all. 0, or the code of copy->error.
 */
int copy_parameters_out(struct copy *copy);
int copy_parameters_in(struct copy *copy);
int copy_optimizer_out(struct copy *copy);
int copy_optimizer_in(struct copy *copy);

#endif
