/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes an engine: workers, store and pool of a configuration block, close to the drive
 * of the store, or of files of others.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory/huge_map.h"
#include "base/struct_size.h"
#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

static const char *name_of(enum nvs_block block)
{
	return block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer";
}

/* What an engine is opened with. */
struct opening {
	const struct nvs_config *config;
	enum nvs_block block;
	const struct weights *weights; /* files of others instead of the block's store; or NULL */
	struct nvs_aio *aio;	       /* the caller's; or NULL */
	const struct engine_ops
		*ops; /* of an aio of its own, instead of the configured ones; or NULL */
	void *ops_arg;
};

static int check_store(const struct nvs_config *config, enum nvs_block block,
		       struct nvs_error *error)
{
	const struct offload_config *offload = &config->offload[block];
	bool on_drive = offload->device == NVS_DEVICE_NVME;
	bool kept = config->keep || config->read_only;

	if (offload->device == NVS_DEVICE_NONE)
		return error_about(error, -EINVAL, "device", 0, 0,
				   "%s.device is none: there is nothing to swap. Set it to nvme, "
				   "with an nvme_path, or to cpu",
				   name_of(block));
	if (on_drive && !offload->npaths)
		return error_about(
			error, -EINVAL, "nvme_path", 0, 0,
			"%s.device is nvme, but it has no nvme_path: name a directory on "
			"the drive",
			name_of(block));
	if (*config->rank_variable)
		return error_about(
			error, -EINVAL, "nvswap.rank", 0, 0,
			"nvswap.rank is the environment variable %s, which was not read: "
			"call nvs_config_read_rank before opening",
			config->rank_variable);
	if (config->scrub && on_drive && config->verify != VERIFY_ON && !kept)
		return error_about(error, -EINVAL, "nvswap.scrub", 0, 0,
				   "nvswap.scrub compares checksums, and there are none: set "
				   "nvswap.verify too");
	if (config->rollback && !kept)
		return error_about(error, -EINVAL, "nvswap.rollback", 0, 0,
				   "nvswap.rollback goes back to a commit of a kept store, and "
				   "this one is not kept: set nvswap.keep or "
				   "nvswap.read_only too, or leave it out");
	return 0;
}

static int check_pool(const struct nvs_config *config, enum nvs_block block,
		      struct nvs_error *error)
{
	const struct offload_config *offload = &config->offload[block];

	if (!offload->buffer_count || !offload->buffer_size)
		return error_about(error, -EINVAL, "buffer_size", 0, 0,
				   "%s: buffer_count %u x buffer_size %" PRIu64
				   ": the pool would be empty",
				   name_of(block), offload->buffer_count, offload->buffer_size);
	if (nvs_config_pool_bytes(config, block) == UINT64_MAX)
		return error_about(error, -EINVAL, "buffer_size", 0, 0,
				   "%s: buffer_count %u x buffer_size %" PRIu64
				   " elements%s exceed 2^64 bytes",
				   name_of(block), offload->buffer_count, offload->buffer_size,
				   block == NVS_OFFLOAD_OPTIMIZER && config->optimizer_max_in_cpu
					   ? " and nvswap.optimizer_max_in_cpu"
					   : "");
	return 0;
}

/* The store may be called under the engine's lock, except while it is opened. */
static void log_for_store(void *arg, enum nvs_log_level level, const char *text)
{
	struct nvs_engine *engine = arg;

	if (engine->opened)
		log_later(&engine->log, level, "%s", text);
	else
		log_say(&engine->log.to, level, "%s", text);
}

/* An engine with its settings, which has opened nothing yet. NULL: out of memory. */
static struct nvs_engine *engine_new(const struct opening *opening)
{
	const struct nvs_config *config = opening->config;
	enum nvs_block block = opening->block;
	const struct offload_config *offload = &config->offload[block];
	bool on_drive = offload->device == NVS_DEVICE_NVME && !opening->weights;
	/* The budgets apply to parameters; the optimizer has its own. */
	bool param = block == NVS_OFFLOAD_PARAM;
	struct nvs_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	engine->moves.failure.size = sizeof(engine->moves.failure);
	log_init(&engine->log, &config->log);
	if (config->log.fn)
		engine->store_log = (struct nvs_log){log_for_store, engine};
	engine->trace = config->trace;
	engine->aio_config = config->aio;
	engine->keep = (config->keep || config->read_only) && on_drive;
	engine->of_files = opening->weights;
	engine->read_only = (config->read_only && engine->keep) || engine->of_files;
	engine->verify = config->verify == VERIFY_ON ||
			 (config->verify == VERIFY_IF_KEPT && engine->keep);
	engine->max_in_cpu = param ? offload->max_in_cpu : UINT64_MAX;
	engine->prefetch_bucket_size = param ? config->prefetch_bucket_size : UINT64_MAX;
	engine->max_live = param ? config->max_live_parameters : UINT64_MAX;
	engine->max_reuse_distance = param ? config->max_reuse_distance : UINT64_MAX;
	engine->persistence_threshold = param ? config->param_persistence_threshold : 0;
	engine->room.shortage_after_ns = SHORTAGE_AFTER_NS;
	pthread_mutex_init(&engine->commit.lock, NULL);
	pthread_mutex_init(&engine->commit.notes, NULL);
	pthread_mutex_init(&engine->naming, NULL);
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->changed, NULL);
	/* A store in host memory has no drive that could lose it. */
	engine->scrub.wanted = config->scrub && on_drive;
	pthread_cond_init(&engine->scrub.wake, NULL);
	TAILQ_INIT(&engine->queue.tickets);
	engine->queue.patience_ns = PATIENCE_NS;
	for (int i = 0; i < PLACEMENTS; i++)
		TAILQ_INIT(&engine->room.lists[i]);
	TAILQ_INIT(&engine->turns.line);
	for (int i = 0; i < 2 * TRANSFER_PRIORITIES; i++)
		TAILQ_INIT(&engine->moves.runs[i % 2][i / 2]);
	return engine;
}

/* Opens the store of the block, or files of others, and determines the NUMA node that their drives
 * share. */
static int open_store(struct nvs_engine *engine, const struct opening *opening,
		      struct nvs_error *error)
{
	const struct nvs_config *config = opening->config;
	const struct offload_config *offload = &config->offload[opening->block];
	const char *const *paths = (const char *const *)offload->nvme_path;
	struct store_options store = {
		.paths = paths,
		.npaths = offload->device == NVS_DEVICE_NVME ? offload->npaths : 0,
		.rank = config->rank,
		/* Both blocks may name one path. */
		.optimizer = opening->block == NVS_OFFLOAD_OPTIMIZER,
		.stripe_size = config->stripe_size,
		.keep = config->keep,
		.write_budget = config->write_budget,
		.read_only = config->read_only,
		.rollback = config->rollback,
		.log = &engine->store_log,
	};
	const struct weights *weights = opening->weights;
	const char *files[NVS_PATHS_MAX];
	unsigned n = store.npaths;
	int rc;

	if (weights) {
		rc = store_open_files(&engine->store, engine->aio, weights, error);
		for (n = 0; n < NVS_PATHS_MAX && n < weights->nfiles; n++)
			files[n] = weights->files[n].path;
		paths = files;
	} else {
		rc = store_open(&engine->store, engine->aio, &store, error);
	}
	engine->node = !rc && n ? topo_node_of_paths(engine->topo, paths, n) : -1;
	return rc;
}

/* Opens the pool on the store's node. */
static int open_pool(struct nvs_engine *engine, const struct nvs_config *config,
		     enum nvs_block block, struct nvs_error *error)
{
	const struct offload_config *offload = &config->offload[block];
	struct pool_options pool = {
		.nbytes = nvs_config_pool_bytes(config, block),
		.pin = offload->pin_memory,
		.topo = engine->topo,
		.log = &engine->log.to,
	};
	char all[32], part[32];
	size_t done;
	int rc;

	pool.node = engine->node;
	pool.unit = store_unit(engine->store);
	rc = pool_open(&engine->pool, &pool, error);
	if (rc)
		return rc;
	engine->pool_key = block == NVS_OFFLOAD_PARAM ? "buffer_size" : "sub_group_size";
	engine->pool_step = pool.nbytes / offload->buffer_size;
	snprintf(engine->remedy, sizeof(engine->remedy),
		 "%s: buffer_count %u x %s %" PRIu64 " elements x %" PRIu64 " bytes",
		 name_of(block), offload->buffer_count, engine->pool_key, offload->buffer_size,
		 engine->pool_step / offload->buffer_count);
	/* Memory that can't be registered still works; the kernel pins its pages for each I/O. */
	rc = aio_register_most(engine->aio, pool_data(engine->pool), pool_bytes(engine->pool),
			       &done);
	if (rc)
		log_say(&engine->log.to, NVS_LOG_INFO,
			"of the pool's %s, only %s could be registered with the rings: %s "
			"(registered memory counts against the memlock limit once per worker)",
			size_text(pool_bytes(engine->pool), all), size_text(done, part),
			nvs_strerror(rc));
	if (engine->node >= 0)
		aio_bind_workers(engine->aio, engine->topo, engine->node);
	return 0;
}

static void engine_free(struct nvs_engine *engine)
{
	struct kept_place *place;

	assert(!runs_in_flight(&engine->moves) && !engine->commit.writing && !engine->room.waiting);
	assert(TAILQ_EMPTY(&engine->turns.line) && !engine->turns.ncopied);
	/* Its last round may count the write budget, and say so to the log function, which may
	 * still ask for the tensors. */
	events_stop(engine);
	log_stop(&engine->log);
	engine->opened = false;
	scrub_close(engine);
	tensors_free(engine);
	free(engine->commit.note);
	free(engine->commit.last_note);
	/* Threads may still keep their places. */
	while ((place = LIST_FIRST(&engine->queue.places))) {
		LIST_REMOVE(place, link);
		free(place);
	}
	plan_clear(&engine->plan);
	free(engine->plan.order);
	free(engine->plan.recording);
	/* No ring has the memory any more when it is unmapped. */
	if (engine->pool)
		aio_unregister_all(engine->aio, pool_data(engine->pool));
	if (engine->store)
		store_close(engine->store);
	if (engine->aio)
		aio_change_holders(engine->aio, -1);
	if (!engine->shares_aio) {
		int rc = nvs_aio_close(engine->aio);

		assert(!rc);
		(void)rc;
	}
	events_close(engine);
	pool_close(engine->pool);
	topo_close(engine->topo);
	log_destroy(&engine->log);
	pthread_mutex_destroy(&engine->lock);
	pthread_mutex_destroy(&engine->commit.lock);
	pthread_mutex_destroy(&engine->commit.notes);
	pthread_mutex_destroy(&engine->naming);
	pthread_cond_destroy(&engine->changed);
	free(engine);
}

static int open_engine(struct nvs_engine **out, const struct opening *opening,
		       struct nvs_error *error)
{
	const struct nvs_config *config = opening->config;
	const struct weights *weights = opening->weights;
	enum nvs_block block = opening->block;
	struct nvs_engine *engine;
	int rc;

	if (!block_exists(block))
		return error_set(error, -EINVAL, "block is %d: there is no such block", (int)block);
	rc = (weights ? 0 : check_store(config, block, error)) ?: check_pool(config, block, error);
	if (rc)
		return rc;
	engine = engine_new(opening);
	if (!engine)
		return error_no_memory(error, "opening the engine");
	rc = topo_open(&engine->topo, NULL, error);
	if (!rc && opening->aio) {
		rc = config_same_aio(config, aio_settings(opening->aio), error);
		engine->shares_aio = !rc;
		engine->aio = rc ? NULL : opening->aio;
	} else if (!rc) {
		rc = aio_open_with(&engine->aio, &engine->aio_config, opening->ops,
				   opening->ops_arg, &engine->log.to, error);
		if (!rc)
			aio_trace(engine->aio, engine->trace);
	}
	if (!rc) {
		aio_change_holders(engine->aio, 1);
		rc = events_open(engine, error)
			     ?: open_store(engine, opening, error)
			     ?: open_pool(engine, config, block, error)
			     ?: (weights ? tensors_from_files(engine, weights, error)
					 : tensors_from_manifest(engine, error))
			     ?: notes_open(engine, error);
	}
	if (!rc && STATE_CHECKS) {
		engine_lock(engine);
		engine_check(engine);
		engine_unlock(engine);
	}
	rc = rc ?: scrub_start(engine, error);
	if (rc) {
		engine_free(engine);
		return rc;
	}
	trace_call(engine->trace, TRACE_OPEN, clock_ns(),
		   &(struct trace_subject){.name = "", .nbytes = pool_bytes(engine->pool)});
	engine->opened = true;
	*out = engine;
	return 0;
}

int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error)
{
	const struct opening opening = {
		.config = config, .block = block, .ops = ops, .ops_arg = ops_arg};

	return open_engine(engine, &opening, error);
}

int engine_open_weights(struct nvs_engine **engine, const struct nvs_config *config,
			const struct weights *weights, struct nvs_aio *aio, struct nvs_error *error)
{
	const struct opening opening = {
		.config = config, .block = NVS_OFFLOAD_PARAM, .weights = weights, .aio = aio};

	return open_engine(engine, &opening, error);
}

int nvs_engine_open(struct nvs_engine **engine, const struct nvs_config *config,
		    enum nvs_block block, struct nvs_error *error)
{
	HOLD_CANCEL;
	if (engine)
		*engine = NULL;
	if (!engine || !config)
		return error_set(error, -EINVAL, "the engine or the configuration is NULL");
	return engine_open_with(engine, config, block, NULL, NULL, error);
}

int nvs_engine_open_on(struct nvs_engine **engine, struct nvs_aio *aio,
		       const struct nvs_config *config, enum nvs_block block,
		       struct nvs_error *error)
{
	HOLD_CANCEL;
	if (engine)
		*engine = NULL;
	if (!engine || !aio || !config)
		return error_set(error, -EINVAL,
				 "the engine, the aio or the configuration is NULL");
	return open_engine(engine,
			   &(const struct opening){.config = config, .block = block, .aio = aio},
			   error);
}

int engine_check_unshared(const struct nvs_engine *engine, struct nvs_error *error)
{
	unsigned others = aio_change_holders(engine->aio, 0) - 1;

	if (engine->shares_aio || !others)
		return 0;
	return error_set(error, -EBUSY,
			 "%u other engine%s on this one's aio, which is closed with it: close "
			 "%s first",
			 others, others > 1 ? "s are open" : " is open",
			 others > 1 ? "them" : "it");
}

int engine_close(struct nvs_engine *engine, struct nvs_error *error)
{
	bool commits;
	int rc, drained;

	if (!engine)
		return 0;
	commits = engine->keep && !engine->read_only && !engine->abandoned;
	rc = engine_check_unshared(engine, error)
		     ?: (commits ? engine_check_pins(engine, error) : 0)
		     ?: scrub_stop(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	plan_drop(engine);
	rc = drain(engine, false, error);
	engine_check(engine);
	engine_unlock(engine);
	if (!rc && commits)
		rc = engine_commit(engine, error);
	/* The drive hangs: the kernel may still write to the memory. */
	if (rc == -ETIMEDOUT)
		return rc;
	/* The log function may call the engine, and wait for what its threads do. */
	log_await_told(&engine->log);
	engine_lock(engine);
	drained = drain(engine, false, error);
	engine_unlock(engine);
	if (drained)
		return drained;
	engine_free(engine);
	return rc;
}

int nvs_engine_close(struct nvs_engine *engine, struct nvs_error *error)
{
	HOLD_CANCEL;
	return check_unowned(engine, "nvs_optimizer_close closes it", error)
		       ?: engine_close(engine, error);
}

void engine_abandon(struct nvs_engine *engine)
{
	engine->abandoned = true;
}

int nvs_engine_abandon(struct nvs_engine *engine, struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_unowned(engine, "nvs_optimizer_abandon closes it without a commit", error);

	/* A call that is refused must not make the next one leave out the commit. */
	if (engine)
		rc = rc ?: engine_check_unshared(engine, error);
	if (rc || !engine)
		return rc;
	engine_abandon(engine);
	return engine_close(engine, error);
}

void engine_set_owned(struct nvs_engine *engine)
{
	assert(engine->opened && !engine->owned);
	engine->owned = true;
}

const struct topo *engine_topo(const struct nvs_engine *engine, int *node)
{
	*node = engine->node;
	return engine->topo;
}

uint64_t engine_unit(const struct nvs_engine *engine)
{
	return store_unit(engine->store);
}

uint64_t engine_write_failures(struct nvs_engine *engine, struct nvs_error *last)
{
	uint64_t n;

	engine_lock(engine);
	n = engine->moves.write_failures;
	*last = engine->moves.failure;
	engine_unlock(engine);
	return n;
}

struct nvs_aio *nvs_engine_aio(struct nvs_engine *engine)
{
	return engine ? engine->aio : NULL;
}

int nvs_engine_pool(struct nvs_engine *engine, void **data, size_t *nbytes)
{
	if (!engine || !data || !nbytes)
		return -EINVAL;
	*data = pool_data(engine->pool);
	/* The arena is whole pages. */
	*nbytes = round_to_pages(pool_bytes(engine->pool));
	return 0;
}

int nvs_engine_get_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats)
{
	struct nvs_engine_stats full = {.size = sizeof(full), .aio.size = sizeof(full.aio)};

	if (!engine || !stats)
		return -EINVAL;
	full.direct = store_direct(engine->store);
	nvs_aio_get_stats(engine->aio, &full.aio);
	engine_lock(engine);
	events_hurry(engine);
	pool_get_stats(engine->pool, &full.pool);
	full.tensors = engine->nregistered;
	full.tensor_bytes = engine->tensor_bytes;
	full.store_bytes = store_bytes(engine->store);
	full.drive_written_bytes = store_written(engine->store);
	full.swapped_in = engine->moves.swapped[NVS_READ];
	full.swapped_out = engine->moves.swapped[NVS_WRITE];
	full.transfers = engine->moves.transfers;
	full.evictions = engine->room.evictions;
	full.busy_ns = busy_ns(engine, clock_ns());
	full.verify_errors = engine->moves.verify_errors;
	full.scrub_rounds = engine->scrub.rounds;
	full.scrub_bytes = engine->scrub.nbytes;
	full.scrub_errors = engine->scrub.errors;
	engine_unlock(engine);
	return struct_out(stats, &full, sizeof(full));
}
