/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass over the tiles: the calling thread fetches them in order, as room comes free. The landing
 * thread waits for the oldest one in flight. Compute threads take slices of the oldest tile that
 * has landed; the thread that computes a tile's last slice starts its write. Tiles in host memory
 * are computed while the drive is busy. If the kind moves tiles elsewhere, a thread begins the next
 * tile before it waits for the one before. A tile that was begun is finished even if the pass
 * fails: every tile is either done or unchanged.
 */
#include <stdio.h>

#include "base/clock.h"
#include "base/error.h"
#include "optim/pass/pass.h"
#include "trace/trace.h"

#define FLIGHTS 2u /* of a thread: tiles begun and not completed */

/* Elements [from, from + n) of a tile. */
struct slice {
	size_t tile;
	uint64_t from, n;
};

/* A compute thread in a pass. */
struct pass_thread {
	struct pass *pass;
	unsigned index;
	unsigned turn;		/* which of its flights the next tile has */
	struct slice in_flight; /* the tile that it has begun; n is 0: none */
};

static void record_failure(struct pass *pass, int rc, const struct nvs_error *error)
{
	if (!pass->rc) {
		pass->rc = rc;
		pass->error = *error;
	}
}

/* ---- Landing ---- */

static void land_all(void *arg, unsigned thread)
{
	struct pass *pass = arg;
	struct nvs_error error = {.size = sizeof(error)};
	size_t tile;
	int rc;

	(void)thread;
	pthread_mutex_lock(&pass->lock);
	for (;;) {
		while (pass->nlanded == pass->nfetched && !pass->all_fetched)
			pthread_cond_wait(&pass->fetched, &pass->lock);
		if (pass->nlanded == pass->nfetched)
			break;
		tile = pass->optimizer->queue[pass->nlanded];
		pthread_mutex_unlock(&pass->lock);
		rc = tile_wait(pass, tile, &error);
		pthread_mutex_lock(&pass->lock);
		if (rc)
			record_failure(pass, rc, &error);
		task_set(pass, tile, TASK_LANDED);
		pass->nlanded++;
		pthread_cond_broadcast(&pass->work);
	}
	pthread_mutex_unlock(&pass->lock);
}

/* ---- Computing ---- */

static bool front_is_open(const struct pass *pass)
{
	const struct nvs_config *config = &pass->optimizer->config;

	assert(pass->front <= pass->nlanded && pass->nlanded <= pass->nfetched);
	if (pass->front_taken)
		return true;
	if (pass->front == pass->nlanded || pass->rc)
		return false;
	/* Without pipeline_write, each tile is computed and written before the next. */
	return !pass->nactive || config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write;
}

static bool take_from_tile(struct pass *pass, size_t tile, uint64_t *taken, struct slice *slice)
{
	uint64_t numel = pass->optimizer->tile_numel, most = pass->kind->complete ? numel : SLICE;

	*slice = (struct slice){.tile = tile, .from = *taken, .n = min_u64(numel - *taken, most)};
	if (!*taken) {
		task_set(pass, tile, TASK_COMPUTED);
		pass->optimizer->tiles[tile].slices = (uint32_t)((numel + most - 1) / most);
		pass->nactive++;
	}
	*taken += slice->n;
	return *taken == numel;
}

static bool take_slice(struct pass *pass, struct slice *slice)
{
	size_t tile;

	if (!front_is_open(pass)) {
		const struct nvs_optimizer *optimizer = pass->optimizer;

		while (!pass->host_taken && pass->host < optimizer->ntiles &&
		       optimizer->tiles[pass->host].task != TASK_AT_HAND)
			pass->host++;
		if (pass->host == optimizer->ntiles || (pass->rc && !pass->host_taken))
			return false;
		if (take_from_tile(pass, pass->host, &pass->host_taken, slice)) {
			pass->host++;
			pass->host_taken = 0;
		}
		return true;
	}
	tile = pass->optimizer->queue[pass->front];
	if (take_from_tile(pass, tile, &pass->front_taken, slice)) {
		pass->front++;
		pass->front_taken = 0;
	}
	return true;
}

/* Ends a slice with its status, and its tile with the last one. */
static void end_slice(struct pass *pass, const struct slice *slice, int rc)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (rc) {
		error_set(&error, rc, "the computation has failed: %s", nvs_strerror(rc));
		task_set(pass, slice->tile, TASK_FAILED);
		record_failure(pass, rc, &error);
	}
	assert(pass->nactive && pass->optimizer->tiles[slice->tile].slices);
	if (--pass->optimizer->tiles[slice->tile].slices)
		return;
	pthread_mutex_unlock(&pass->lock);
	rc = tile_finish(pass, slice->tile, &error);
	pthread_mutex_lock(&pass->lock);
	if (rc)
		record_failure(pass, rc, &error);
	task_set(pass, slice->tile, TASK_NONE);
	pass->figures.tiles++;
	pass->nactive--;
	pthread_cond_signal(&pass->progress);
	pthread_cond_broadcast(&pass->work);
}

/* A failed pass releases its fetched tiles, so that the fetcher finds room and sees the error. */
static bool clear_front(struct pass *pass)
{
	size_t tile;

	if (!pass->rc || pass->front == pass->nlanded || pass->front_taken)
		return false;
	tile = pass->optimizer->queue[pass->front++];
	assert(pass->optimizer->tiles[tile].task == TASK_LANDED);
	pthread_mutex_unlock(&pass->lock);
	tile_abandon(pass, tile);
	pthread_mutex_lock(&pass->lock);
	task_set(pass, tile, TASK_NONE);
	pthread_cond_signal(&pass->progress);
	return true;
}

static unsigned flight_of(const struct pass_thread *thread, unsigned turn)
{
	return thread->pass->kind->complete ? thread->index * FLIGHTS + turn : thread->index;
}

/* Waits for the transfers of the tile that the thread has in flight. False: it has none. */
static bool complete_flight(struct pass_thread *thread)
{
	struct pass *pass = thread->pass;
	struct slice slice = thread->in_flight;
	int rc;

	if (!slice.n)
		return false;
	assert(pass->kind->complete && !slice.from && slice.n == pass->optimizer->tile_numel);
	pthread_mutex_unlock(&pass->lock);
	rc = pass->kind->complete(pass->optimizer, pass->arg, slice.tile,
				  flight_of(thread, thread->turn ^ 1));
	pthread_mutex_lock(&pass->lock);
	thread->in_flight.n = 0;
	end_slice(pass, &slice, rc);
	return true;
}

static void compute_slice(struct pass_thread *thread, const struct slice *slice)
{
	struct pass *pass = thread->pass;
	int rc;

	pthread_mutex_unlock(&pass->lock);

	struct nvs_trace *trace = pass->optimizer->config.trace;
	uint64_t from = clock_ns(), cpu_from = thread_cpu_ns(), to;
	char name[32];

	rc = pass->kind->slice(pass->optimizer, pass->arg, slice->tile, slice->from, slice->n,
			       flight_of(thread, thread->turn));
	to = clock_ns();
	__atomic_add_fetch(&pass->figures.compute_ns, to - from, __ATOMIC_RELAXED);
	__atomic_add_fetch(&pass->figures.cpu_ns, thread_cpu_ns() - cpu_from, __ATOMIC_RELAXED);
	if (trace) {
		snprintf(name, sizeof(name), "tile %zu", slice->tile);
		trace_thread(trace, TRACE_COMPUTE, name, from, to);
	}

	pthread_mutex_lock(&pass->lock);
	if (!pass->kind->complete) {
		end_slice(pass, slice, rc);
		return;
	}
	assert(!rc);
	complete_flight(thread);
	thread->in_flight = *slice;
	thread->turn ^= 1;
}

static void run_thread(void *arg, unsigned thread)
{
	struct pass *pass = arg;
	struct pass_thread self = {.pass = pass, .index = thread};
	struct slice slice;

	pthread_mutex_lock(&pass->lock);
	for (;;) {
		if (take_slice(pass, &slice)) {
			compute_slice(&self, &slice);
		} else if (!complete_flight(&self) && !clear_front(pass)) {
			if (pass->all_fetched && pass->front == pass->nfetched)
				break;

			/* Waits until a tile has landed or ended. */
			uint64_t from = clock_ns(), to;

			/* Nothing wakes a thread after the end. */
			pthread_cond_wait(&pass->work, &pass->lock);
			to = clock_ns();
			pass->figures.stalls++;
			pass->figures.stall_ns += to - from;
			trace_thread(pass->optimizer->config.trace, TRACE_WAIT, "wait for a tile",
				     from, to);
		}
	}
	assert(!self.in_flight.n);
	pthread_mutex_unlock(&pass->lock);
}

/* ---- Fetching ---- */

/* Without pipeline_read, a tile is fetched when the one before it is finished. */
static bool may_fetch(struct pass *pass)
{
	bool may;

	pthread_mutex_lock(&pass->lock);
	while (!pass->optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read && !pass->rc &&
	       (pass->front < pass->nfetched || pass->nactive))
		pthread_cond_wait(&pass->progress, &pass->lock);
	may = !pass->rc;
	pthread_mutex_unlock(&pass->lock);
	return may;
}

int wait_landed(struct nvs_optimizer *optimizer, uint64_t failures, struct nvs_error *error)
{
	int rc = engine_wait_landed(optimizer->engine, optimizer->offloaded,
				    optimizer->rule->nparts * optimizer->noffloaded, error);

	return rc ?: check_writes(optimizer, &failures, error);
}

static int fetch_or_write(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct tile *tile = &pass->optimizer->tiles[i];
	int rc = check_writes(pass->optimizer, &pass->write_failures, error);
	bool queued;

	if (rc)
		return rc;
	pthread_mutex_lock(&pass->lock);
	queued = tile->task == TASK_QUEUED;
	pthread_mutex_unlock(&pass->lock);
	if (!queued) {
		/* Threads may compute one that is not offloaded. */
		if (i < pass->optimizer->noffloaded && pass->kind->writes && is_held(tile) &&
		    !stays(pass, i))
			return tile_write(pass, tile, error);
		return 0;
	}
	rc = tile_fetch(pass, i, error);
	if (!rc) {
		pthread_mutex_lock(&pass->lock);
		task_set(pass, i, TASK_FETCHED);
		pass->optimizer->queue[pass->nfetched++] = i;
		pthread_cond_signal(&pass->fetched);
		pthread_mutex_unlock(&pass->lock);
	}
	return rc;
}

unsigned optimizer_flights(const struct nvs_optimizer *optimizer)
{
	return FLIGHTS * threads_count(optimizer->threads);
}

int pass_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
	     struct pass_figures *figures, struct nvs_error *error)
{
	struct pass pass = {
		.optimizer = optimizer,
		.kind = kind,
		.arg = arg,
		.reverse = goes_back(optimizer),
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.fetched = PTHREAD_COND_INITIALIZER,
		.work = PTHREAD_COND_INITIALIZER,
		.progress = PTHREAD_COND_INITIALIZER,
		.host = optimizer->noffloaded,
	};
	struct nvs_error failure = {.size = sizeof(failure)};
	int rc = 0;

	/* A part alone is never written, so that the parts of a tile are of one step. */
	assert(!kind->master_only || !kind->writes);
	assert(!kind->overwrites || kind->writes);
	/* Added gradients are used up by the step that has begun. */
	assert(!kind->gradients || (kind->writes && is_unfinished(optimizer)));
	tasks_begin(&pass);
	pass.write_failures = engine_write_failures(optimizer->engine, &failure);
	walks_end(optimizer);
	threads_start(optimizer->landing, land_all, &pass);
	threads_start(optimizer->threads, run_thread, &pass);
	for (size_t i = 0; i < optimizer->ntiles && !rc && may_fetch(&pass); i++)
		rc = fetch_or_write(&pass, i < optimizer->noffloaded ? mirrored(&pass, i) : i,
				    &failure);
	pthread_mutex_lock(&pass.lock);
	if (rc)
		record_failure(&pass, rc, &failure);
	pass.all_fetched = true;
	pthread_cond_signal(&pass.fetched);
	pthread_cond_broadcast(&pass.work);
	pthread_mutex_unlock(&pass.lock);
	threads_join(optimizer->landing);
	threads_join(optimizer->threads);
	rc = wait_landed(optimizer, pass.write_failures, &failure);
	if (rc)
		record_failure(&pass, rc, &failure);
	tasks_end(&pass);
	if (figures)
		*figures = pass.figures;
	if (pass.rc)
		error_copy(error, &pass.error);
	return pass.rc;
}
