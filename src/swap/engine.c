/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes an engine: workers, store and pool of a configuration block, close to the drive
 * of the store.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/struct_size.h"
#include "config/config.h"
#include "swap/calls/calls.h"
#include "swap/room/shortage.h"

static const struct offload_config *block_of(const struct nvs_config *config, enum nvs_block block)
{
	assert(block_exists(block));
	return &config->offload[block];
}

static const char *name_of(enum nvs_block block)
{
	assert(block_exists(block));
	return block == NVS_OFFLOAD_PARAM ? "offload_param" : "offload_optimizer";
}

/* What the "nvswap" block asks for. */
static int check_own_keys(const struct nvs_config *config, bool on_drive, struct nvs_error *error)
{
	bool kept = config->keep || config->read_only;

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

static int check_config(const struct nvs_config *config, enum nvs_block block,
			struct nvs_error *error)
{
	const struct offload_config *offload = block_of(config, block);

	if (offload->device == NVS_DEVICE_NONE)
		return error_about(error, -EINVAL, "device", 0, 0,
				   "%s.device is none: there is nothing to swap. Set it to nvme, "
				   "with an nvme_path, or to cpu",
				   name_of(block));
	if (offload->device == NVS_DEVICE_NVME && !offload->npaths)
		return error_about(
			error, -EINVAL, "nvme_path", 0, 0,
			"%s.device is nvme, but it has no nvme_path: name a directory on "
			"the drive",
			name_of(block));
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
	return check_own_keys(config, offload->device == NVS_DEVICE_NVME, error);
}

/* The store may be called under the engine's lock, except while it is opened. */
static void say_for_store(void *arg, enum nvs_log_level level, const char *text)
{
	struct nvs_engine *engine = arg;

	assert(engine->store_log.arg == engine && engine->log.fn);
	if (engine->opened)
		say_later(engine, level, "%s", text);
	else
		log_say(&engine->log, level, "%s", text);
}

static int open_store(struct nvs_engine *engine, const struct nvs_config *config,
		      enum nvs_block block, struct nvs_error *error)
{
	const struct offload_config *offload = block_of(config, block);
	const char *paths[NVS_PATHS_MAX];
	struct store_options options = {
		.paths = paths,
		.npaths = offload->device == NVS_DEVICE_CPU ? 0 : offload->npaths,
		.rank = config->rank,
		/* Both blocks may name one path. */
		.optimizer = block == NVS_OFFLOAD_OPTIMIZER,
		.stripe_size = config->stripe_size,
		.keep = config->keep,
		.read_only = config->read_only,
		.rollback = config->rollback,
		.log = &engine->store_log,
	};
	int rc;

	assert(offload->npaths <= NVS_PATHS_MAX && engine->aio && !engine->store);
	for (unsigned i = 0; i < offload->npaths; i++)
		paths[i] = offload->nvme_path[i];
	rc = store_open(&engine->store, engine->aio, &options, error);
	assert((rc == 0) == (engine->store != NULL));
	return rc;
}

/* The NUMA node that the store's drives share; -1: none, or unknown. */
static int node_of(const struct nvs_engine *engine, const struct offload_config *offload)
{
	const char *paths[NVS_PATHS_MAX];

	assert(offload->npaths <= NVS_PATHS_MAX && engine->topo && engine->store);
	if (offload->device != NVS_DEVICE_NVME)
		return -1;
	for (unsigned i = 0; i < offload->npaths; i++)
		paths[i] = offload->nvme_path[i];
	return topo_node_of_paths(engine->topo, paths, offload->npaths);
}

/* Memory that can't be registered still works; the kernel pins its pages for each I/O. */
static void register_pool(struct nvs_engine *engine)
{
	uint64_t nbytes = pool_bytes(engine->pool);
	char all[32], part[32];
	size_t done;
	int rc = aio_register_most(engine->aio, pool_data(engine->pool), nbytes, &done);

	assert(done <= nbytes && (rc || done == nbytes));
	if (rc)
		log_say(&engine->log, NVS_LOG_INFO,
			"of the pool's %s, only %s could be registered with the rings: %s "
			"(registered memory counts against the memlock limit once per worker)",
			size_text(nbytes, all), size_text(done, part), nvs_strerror(rc));
}

static int open_pool(struct nvs_engine *engine, const struct nvs_config *config,
		     enum nvs_block block, struct nvs_error *error)
{
	const struct offload_config *offload = block_of(config, block);
	struct pool_options options = {
		.nbytes = nvs_config_pool_bytes(config, block),
		.unit = store_unit(engine->store),
		.pin = offload->pin_memory,
		.topo = engine->topo,
		.node = engine->node,
		.log = &engine->log,
	};
	int rc = pool_open(&engine->pool, &options, error);

	assert(options.nbytes && options.unit && (rc == 0) == (engine->pool != NULL));
	if (rc)
		return rc;
	engine->pool_key = block == NVS_OFFLOAD_PARAM ? "buffer_size" : "sub_group_size";
	engine->pool_step = options.nbytes / offload->buffer_size;
	assert(engine->pool_step && pool_bytes(engine->pool) >= options.nbytes);
	snprintf(engine->remedy, sizeof(engine->remedy),
		 "%s: buffer_count %u x %s %" PRIu64 " elements x %" PRIu64 " bytes",
		 name_of(block), offload->buffer_count, engine->pool_key, offload->buffer_size,
		 engine->pool_step / offload->buffer_count);
	register_pool(engine);
	if (engine->node >= 0)
		aio_bind_workers(engine->aio, engine->topo, engine->node);
	return 0;
}

static void engine_free(struct nvs_engine *engine)
{
	unlocked_check(engine);
	assert(!engine->inflight[NVS_READ] && !engine->inflight[NVS_WRITE]);
	assert(!engine->held_writes && !engine->committing && !engine->waiting);
	assert(queue_empty(engine) && !engine->events.followers);
	assert(TAILQ_EMPTY(&engine->line) && !engine->ncopied);
	assert(engine->commit_holds == COPIED_NOT);
	/* The last log lines are said while their handler may still ask for the tensors. */
	events_stop(engine);
	scrub_close(engine);
	tensors_free(engine);
	note_close(engine);
	plan_free(&engine->plan);
	/* No ring has the memory any more when it is unmapped. */
	if (engine->pool)
		aio_unregister_all(engine->aio, pool_data(engine->pool));
	if (engine->store)
		store_close(engine->store);
	if (engine->aio)
		aio_release(engine->aio);
	if (!engine->shares_aio) {
		int rc = nvs_aio_close(engine->aio);

		assert(!rc);
		(void)rc;
	}
	events_close(engine);
	pool_close(engine->pool);
	topo_close(engine->topo);
	pthread_mutex_destroy(&engine->lock);
	pthread_mutex_destroy(&engine->commit_lock);
	pthread_mutex_destroy(&engine->naming);
	pthread_cond_destroy(&engine->changed);
	free(engine);
}

/* Where an engine's transfers go: an aio of the caller, or one that is opened with this I/O engine
 * or, without one, with the configured one. */
struct workers {
	struct nvs_aio *aio;
	const struct engine_ops *ops;
	void *ops_arg;
};

static int share_aio(struct nvs_engine *engine, const struct nvs_config *config,
		     struct nvs_aio *aio, struct nvs_error *error)
{
	int rc = config_same_aio(config, aio_settings(aio), error);

	if (rc)
		return rc;
	assert(!engine->aio && !engine->shares_aio && !engine->events.completions);
	engine->aio = aio;
	engine->shares_aio = true;
	aio_hold(aio);
	assert(aio_holders(aio));
	return 0;
}

static int open_aio(struct nvs_engine *engine, const struct nvs_config *config,
		    const struct workers *workers, struct nvs_error *error)
{
	int rc;

	assert(!engine->aio && (!workers->aio || !workers->ops));
	if (workers->aio)
		return share_aio(engine, config, workers->aio, error);
	if (workers->ops)
		rc = aio_open_with(&engine->aio, &engine->aio_config, workers->ops,
				   workers->ops_arg, &engine->log, error);
	else
		rc = aio_open(&engine->aio, &engine->aio_config, &engine->log, error);
	if (rc)
		return rc;
	assert(engine->aio && !engine->shares_aio);
	aio_trace(engine->aio, engine->trace);
	aio_hold(engine->aio);
	assert(aio_holders(engine->aio) == 1);
	return 0;
}

static int open_parts(struct nvs_engine *engine, const struct nvs_config *config,
		      enum nvs_block block, const struct workers *workers, struct nvs_error *error)
{
	int rc;

	assert(!engine->topo && !engine->store && !engine->pool);
	rc = topo_open(&engine->topo, NULL, error);
	if (!rc)
		rc = open_aio(engine, config, workers, error);
	if (!rc)
		rc = events_open(engine, error);
	if (!rc)
		rc = open_store(engine, config, block, error);
	if (!rc) {
		engine->node = node_of(engine, block_of(config, block));
		rc = open_pool(engine, config, block, error);
	}
	if (!rc)
		rc = tensors_from_manifest(engine, error);
	if (!rc)
		rc = note_open(engine, error);
	assert(rc || (engine->store && engine->pool && engine->committed_note));
	return rc;
}

/* The budgets apply to parameters; the optimizer has its own. */
static void set_budgets(struct nvs_engine *engine, const struct nvs_config *config,
			enum nvs_block block)
{
	bool param = block == NVS_OFFLOAD_PARAM;

	assert(!engine->opened && block_exists(block));
	engine->max_in_cpu = param ? config->offload[NVS_OFFLOAD_PARAM].max_in_cpu : UINT64_MAX;
	engine->prefetch_bucket_size = param ? config->prefetch_bucket_size : UINT64_MAX;
	engine->max_live = param ? config->max_live_parameters : UINT64_MAX;
	engine->max_reuse_distance = param ? config->max_reuse_distance : UINT64_MAX;
	engine->persistence_threshold = param ? config->param_persistence_threshold : 0;
}

static struct nvs_engine *engine_new(const struct nvs_config *config, enum nvs_block block)
{
	struct nvs_engine *engine = calloc(1, sizeof(*engine));

	if (!engine)
		return NULL;
	engine->failure.size = sizeof(engine->failure);
	engine->log = config->log;
	if (config->log.fn)
		engine->store_log = (struct nvs_log){say_for_store, engine};
	engine->trace = config->trace;
	engine->aio_config = config->aio;
	engine->keep = (config->keep || config->read_only) &&
		       block_of(config, block)->device == NVS_DEVICE_NVME;
	engine->read_only = config->read_only && engine->keep;
	engine->verify = config->verify == VERIFY_ON ||
			 (config->verify == VERIFY_IF_KEPT && engine->keep);
	/* A store in host memory has no drive that could lose it. */
	scrub_init(&engine->scrub,
		   config->scrub && block_of(config, block)->device == NVS_DEVICE_NVME);
	set_budgets(engine, config, block);
	pthread_mutex_init(&engine->commit_lock, NULL);
	pthread_mutex_init(&engine->naming, NULL);
	pthread_mutex_init(&engine->lock, NULL);
	engine->shortage_after_ns = SHORTAGE_AFTER_NS;
	queue_init(&engine->queue);
	pthread_cond_init(&engine->changed, NULL);
	TAILQ_INIT(&engine->idle);
	TAILQ_INIT(&engine->ahead);
	TAILQ_INIT(&engine->planned);
	TAILQ_INIT(&engine->line);
	for (int i = 0; i < 2 * TRANSFER_PRIORITIES; i++)
		TAILQ_INIT(&engine->runs[i % 2][i / 2]);
	assert(queue_empty(engine) && (engine->keep || !engine->read_only));
	return engine;
}

static int check_arguments_of_open(struct nvs_engine **out, const struct nvs_config *config,
				   enum nvs_block block, struct nvs_error *error)
{
	if (!out || !config)
		return error_set(error, -EINVAL, "%s is NULL", out ? "config" : "engine");
	if (!block_exists(block))
		return error_set(error, -EINVAL, "block is %d: there is no such block", (int)block);
	return check_config(config, block, error);
}

static void check_opened(struct nvs_engine *engine)
{
	engine_lock(engine);
	engine_check(engine);
	assert(!engine->transfers && !engine->live_numel && !engine->nregistered);
	assert(!engine->forgotten && !engine->step.begun);
	engine_unlock(engine);
}

static int open_engine(struct nvs_engine **out, const struct nvs_config *config,
		       enum nvs_block block, const struct workers *workers, struct nvs_error *error)
{
	struct nvs_engine *engine;
	int rc = check_arguments_of_open(out, config, block, error);

	if (rc)
		return rc;
	engine = engine_new(config, block);
	if (!engine)
		return error_set(error, -ENOMEM, "out of memory while opening the engine");
	rc = open_parts(engine, config, block, workers, error);
	if (!rc)
		check_opened(engine);
	if (!rc)
		rc = scrub_start(engine, error);
	if (rc) {
		engine_free(engine);
		return rc;
	}
	trace_call(engine->trace, TRACE_OPEN, clock_ns(),
		   &(struct trace_subject){.name = "", .nbytes = pool_bytes(engine->pool)});
	assert(engine->events.started && !engine->opened);
	engine->opened = true;
	*out = engine;
	return 0;
}

int engine_open_with(struct nvs_engine **engine, const struct nvs_config *config,
		     enum nvs_block block, const struct engine_ops *ops, void *ops_arg,
		     struct nvs_error *error)
{
	assert(ops || !ops_arg);
	return open_engine(engine, config, block, &(struct workers){.ops = ops, .ops_arg = ops_arg},
			   error);
}

int nvs_engine_open(struct nvs_engine **engine, const struct nvs_config *config,
		    enum nvs_block block, struct nvs_error *error)
{
	int rc;

	if (engine)
		*engine = NULL;
	if (!engine || !config)
		return error_set(error, -EINVAL, "the engine or the configuration is NULL");
	rc = engine_open_with(engine, config, block, NULL, NULL, error);
	assert((rc == 0) == (*engine != NULL));
	return rc;
}

int nvs_engine_open_on(struct nvs_engine **engine, struct nvs_aio *aio,
		       const struct nvs_config *config, enum nvs_block block,
		       struct nvs_error *error)
{
	int rc;

	if (engine)
		*engine = NULL;
	if (!engine || !aio || !config)
		return error_set(error, -EINVAL,
				 "the engine, the aio or the configuration is NULL");
	rc = open_engine(engine, config, block, &(struct workers){.aio = aio}, error);
	assert((rc == 0) == (*engine != NULL));
	return rc;
}

int engine_check_unshared(const struct nvs_engine *engine, struct nvs_error *error)
{
	unsigned holders = aio_holders(engine->aio), others = holders - 1;

	assert(engine->opened && holders);
	if (engine->shares_aio || !others)
		return 0;
	return error_set(error, -EBUSY,
			 "%u other engine%s on this one's aio, which is closed with it: close "
			 "%s first",
			 others, others > 1 ? "s are open" : " is open",
			 others > 1 ? "them" : "it");
}

static bool commits_at_close(const struct nvs_engine *engine)
{
	assert(engine->opened);
	return engine->keep && !engine->read_only && !engine->abandoned;
}

int engine_close(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc;

	if (!engine)
		return 0;
	rc = engine_check_unshared(engine, error);
	if (!rc && commits_at_close(engine))
		rc = engine_check_pins(engine, error);
	if (!rc)
		rc = scrub_stop(engine, error);
	if (rc)
		return rc;
	engine_lock(engine);
	assert(engine->opened && !engine->committing && !engine->waiting);
	assert(!engine->scrub.tensor);
	plan_drop(engine);
	rc = drain_all(engine, error);
	assert(!rc || rc == -ETIMEDOUT);
	assert(!engine->plan.n);
	assert(rc || (!engine->inflight[NVS_READ] && !engine->inflight[NVS_WRITE]));
	engine_check(engine);
	engine_unlock(engine);
	if (!rc && commits_at_close(engine))
		rc = engine_commit(engine, error);
	assert(rc != -EBUSY);
	/* The drive hangs: the kernel may still write to the memory. */
	if (rc == -ETIMEDOUT)
		return rc;
	engine_free(engine);
	return rc;
}

void engine_abandon(struct nvs_engine *engine)
{
	assert(engine->opened);
	engine->abandoned = true;
}

void engine_set_owned(struct nvs_engine *engine)
{
	assert(engine->opened && !engine->owned);
	engine->owned = true;
}

const struct topo *engine_topo(const struct nvs_engine *engine)
{
	assert(engine->opened && engine->topo);
	return engine->topo;
}

int engine_node(const struct nvs_engine *engine)
{
	assert(engine->opened && engine->node >= -1);
	return engine->node;
}

uint64_t engine_write_failures(struct nvs_engine *engine, struct nvs_error *last)
{
	uint64_t n;

	engine_lock(engine);
	n = engine->write_failures;
	*last = engine->failure;
	assert((n == 0) == (last->code == 0));
	engine_unlock(engine);
	return n;
}

struct nvs_aio *nvs_engine_aio(struct nvs_engine *engine)
{
	assert(!engine || (engine->opened && engine->aio));
	return engine ? engine->aio : NULL;
}

int nvs_engine_pool(struct nvs_engine *engine, void **data, size_t *nbytes)
{
	if (!engine || !data || !nbytes)
		return -EINVAL;
	*data = pool_data(engine->pool);
	/* The arena is whole pages. */
	*nbytes = round_to_pages(pool_bytes(engine->pool));
	assert(*data && *nbytes >= pool_bytes(engine->pool));
	assert(round_to_pages((uintptr_t)*data) == (uintptr_t)*data);
	return 0;
}

static void gather_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats)
{
	assert(engine->opened && engine->store && engine->pool);
	*stats = (struct nvs_engine_stats){.size = sizeof(*stats),
					   .direct = store_direct(engine->store),
					   .aio.size = sizeof(stats->aio)};
	nvs_aio_get_stats(engine->aio, &stats->aio);
	engine_lock(engine);
	events_hurry(engine);
	pool_get_stats(engine->pool, &stats->pool);
	stats->tensors = engine->nregistered;
	stats->tensor_bytes = engine->tensor_bytes;
	stats->store_bytes = store_bytes(engine->store);
	stats->swapped_in = engine->swapped[NVS_READ];
	stats->swapped_out = engine->swapped[NVS_WRITE];
	stats->transfers = engine->transfers;
	stats->evictions = engine->evictions;
	stats->busy_ns = busy_ns(engine, clock_ns());
	stats->verify_errors = engine->verify_errors;
	stats->scrub_rounds = engine->scrub.rounds;
	stats->scrub_bytes = engine->scrub.nbytes;
	stats->scrub_errors = engine->scrub.errors;
	assert(stats->pool.used <= stats->pool.bytes && stats->tensors <= engine->ntensors);
	engine_unlock(engine);
}

int nvs_engine_get_stats(struct nvs_engine *engine, struct nvs_engine_stats *stats)
{
	struct nvs_engine_stats full;

	if (!engine || !stats)
		return -EINVAL;
	gather_stats(engine, &full);
	return struct_out(stats, &full, sizeof(full));
}
