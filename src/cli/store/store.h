/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The actions of `nvswap store`, and what they share: the stores that the options choose, and the
 * report, as text or JSON. Failed writes set the stream's error, which the command checks.
 */
#ifndef CLI_STORE_STORE_H
#define CLI_STORE_STORE_H

#include <limits.h>

#include "base/json/write.h"
#include "cli/commands.h"
#include "cli/options/options.h"

extern const struct command_spec store_command;

enum store_kind { KIND_PARAMETERS, KIND_OPTIMIZER, KIND_ANY };
#define STATE_NONE UINT_MAX
extern const char *const store_formats[];

/* Bytes of a pool, unless the largest tensor needs more. */
#define MIB	 ((uint64_t)1 << 20)
#define POOL_MIN (64 * MIB)
#define POOL_MAX (512 * MIB)

struct store_job {
	const char *const *paths;
	unsigned npaths;
	unsigned look_at; /* index of the path below which the stores are found */
	bool any_rank;
	uint64_t rank;
	unsigned kind; /* enum store_kind */
	bool rollback;
	const char *to,
		*from; /* checkpoints of export and import, a directory of checksum; NULL: none */
	bool check;
	uint64_t shard_bytes;
	unsigned state; /* enum nvs_optimizer_state, that convert makes; STATE_NONE: none */
	struct report_options report;
	struct json_writer *json;
};

/* An action on one store; returns the exit status. */
typedef int store_fn(struct store_job *job, const struct nvs_store_place *place);
/* Calls `fn` for each store that the options choose below a path, as one of all paths. Returns the
 * highest exit status; STATUS_FAILED after saying so if there is none, or a path can't be read. */
int store_each(struct store_job *job, store_fn *fn);
unsigned store_count(const struct store_job *job);
/* Whether they choose more than one; says so. */
bool store_choice_open(const struct store_job *job);

/* Opens a store, or says why not and returns NULL. */
struct nvs_store *store_look(const struct nvs_store_place *place, unsigned flags,
			     struct nvs_store_info *info);

struct store_size {
	uint64_t tensors, bytes, largest; /* bytes of all of them, and of one */
};
/* Measures a store that is there; false after saying why it can't. */
bool store_measure(const struct nvs_store_place *place, struct store_size *size);
/* Settings by which the library opens a store of that size, to write or only to read: the pool has
 * several transfers at a time, or two of the largest tensors. Close *config in any case. */
int store_settings(const struct nvs_store_place *place, bool writes, const struct store_size *size,
		   struct nvs_config **config, struct nvs_error *error);
/* Passes on what opening it returned; after -EBUSY the error tells which process has it. */
int store_opened(const struct nvs_store_place *place, int rc, struct nvs_error *error);

/* The actions; each returns the exit status. The first two are called for each chosen store. */
store_fn store_show, store_repair;
int store_list(struct store_job *job);
int store_verify(struct store_job *job);
int store_remove(struct store_job *job);
int store_export(struct store_job *job);
int store_import(struct store_job *job);
int store_checksum(struct store_job *job);
int store_convert(struct store_job *job);

/* Opens an object with path, rank and kind of a store. */
void store_open_json(struct json_writer *json, const struct nvs_store_place *place);

#endif
