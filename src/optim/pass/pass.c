/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pass over the tiles: the calling thread fetches them in order, as room comes free. Compute
 * threads take slices of the oldest tile that has landed; the thread that computes a tile's last
 * slice starts its write. Tiles in host memory are computed while the drive is busy. A tile that
 * was begun is finished even if the pass fails: every tile is either done or unchanged.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "optim/internal.h"
#include "trace/trace.h"

struct pass {
	struct nvs_optimizer *optimizer;
	const struct pass_kind *kind;
	void *arg;
	bool reverse;

	pthread_mutex_t lock;
	pthread_cond_t work;	 /* for the threads: a tile was fetched or landed, or the end */
	pthread_cond_t progress; /* for the fetcher: a tile is finished */
	size_t nfetched;	 /* tiles in optimizer->queue, in walk order */
	bool all_fetched;
	size_t front;	      /* the first of them with elements that no thread has taken */
	uint64_t front_taken; /* elements of it that were taken */
	bool front_landed, front_awaited;
	size_t nactive; /* tiles begun and not finished */
	size_t host;	/* the next tile in host memory */
	uint64_t host_taken;

	uint64_t write_failures; /* the engine's, when the pass began */
	int rc;
	struct nvs_error error;
	struct pass_figures figures;
};

/* Elements [from, from + n) of a tile. */
struct slice {
	size_t tile;
	uint64_t from, n;
};

/* Maps an offloaded tile to its position in the walk, and a position to its tile. */
static size_t mirrored(const struct pass *pass, size_t i)
{
	return pass->reverse ? pass->optimizer->noffloaded - 1 - i : i;
}

/* The last tiles of this walk are the first of the next. */
static bool stays(const struct pass *pass, size_t tile)
{
	const struct nvs_optimizer *optimizer = pass->optimizer;

	return mirrored(pass, tile) + optimizer->ncached >= optimizer->noffloaded;
}

static void fail(struct pass *pass, int rc, const struct nvs_error *error)
{
	if (!pass->rc) {
		pass->rc = rc;
		pass->error = *error;
	}
}

/* ---- One tile ---- */

static struct gradient_tile *gradients_of(const struct pass *pass, size_t tile)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	struct gradient_tile *gradients =
		&optimizer->gradients[tile * optimizer->tile_numel / optimizer->gradient_numel];

	return pass->kind->gradients && gradients->valid ? gradients : NULL;
}

static bool is_offloaded(const struct pass *pass, size_t tile)
{
	return tile < pass->optimizer->noffloaded;
}

/* The parts of a tile that the pass needs in the pool, the first ones: 0 if it is not offloaded. */
static unsigned parts_of(const struct pass *pass, size_t tile)
{
	if (!is_offloaded(pass, tile))
		return 0;
	return pass->kind->master_only ? 1 : PARTS;
}

#define TENSORS (PARTS + 1)

/* The tensors that a tile needs: its parts if it is offloaded, and gradients if some were added. */
static unsigned tensors_of(const struct pass *pass, size_t tile,
			   struct nvs_tensor *tensors[TENSORS])
{
	const struct gradient_tile *gradients = gradients_of(pass, tile);
	unsigned n = 0;

	for (; n < parts_of(pass, tile); n++)
		tensors[n] = pass->optimizer->tiles[tile].parts[n];
	if (gradients)
		tensors[n++] = gradients->tensor;
	return n;
}

static bool is_resident(const struct pass *pass, size_t tile)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	struct nvs_tensor_info info = {.size = sizeof(info)};

	for (unsigned part = 0; part < parts_of(pass, tile); part++) {
		nvs_tensor_get_info(optimizer->engine, optimizer->tiles[tile].parts[part], &info);
		if (info.state != NVS_RESIDENT && info.state != NVS_WRITING)
			return false;
	}
	return true;
}

/* Tiles that need the same gradients share one pin of them. False: there is none yet. */
static bool share(struct pass *pass, struct gradient_tile *gradients)
{
	bool shared;

	pthread_mutex_lock(&pass->lock);
	shared = gradients->sharers;
	gradients->sharers += shared;
	pthread_mutex_unlock(&pass->lock);
	return shared;
}

static void begin_sharing(struct pass *pass, struct gradient_tile *gradients)
{
	pthread_mutex_lock(&pass->lock);
	gradients->sharers = 1;
	pthread_mutex_unlock(&pass->lock);
}

/* The last one to leave ends the pin, unless a failed read has done so. */
static void stop_sharing(struct pass *pass, struct gradient_tile *gradients)
{
	uint64_t pin;
	bool last;

	pthread_mutex_lock(&pass->lock);
	pin = gradients->pin;
	last = !--gradients->sharers;
	pthread_mutex_unlock(&pass->lock);
	if (last)
		engine_unpin(pass->optimizer->engine, gradients->tensor, pin);
}

/* Leaves gradients whose read may have failed, under the lock, so that no other reads them again.
 */
static void leave_unread(struct pass *pass, struct gradient_tile *gradients)
{
	nvs_tensor_wait(pass->optimizer->engine, &gradients->tensor, 1, gradients->pin, -1, NULL);
	stop_sharing(pass, gradients);
}

static void count_hit(struct pass *pass, size_t i)
{
	struct tile *tile = &pass->optimizer->tiles[i];

	if (tile->held || (!tile->ahead && is_resident(pass, i)))
		pass->figures.hits++;
	else if (!tile->fresh)
		pass->figures.misses++;
	tile->ahead = false;
}

/* Pins the first n of a tile's tensors, of which the last may be gradients; waits for room. */
static int pin_tensors(struct pass *pass, size_t i, struct nvs_tensor *const *tensors, unsigned n,
		       struct nvs_error *error)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	struct tile *tile = &pass->optimizer->tiles[i];
	unsigned parts = parts_of(pass, i), first = 0;
	uint64_t pin;
	int rc = 0;

	if (parts) {
		count_hit(pass, i);
		first = tile->held || tile->fresh || pass->kind->overwrites ? parts : 0;
		if (first && !tile->held)
			rc = nvs_tensor_pin(engine, tensors, parts, -1, &tile->pin, error);
	}
	if (rc || first == n)
		return rc;
	rc = nvs_tensor_swap_in(engine, tensors + first, n - first, -1, &pin, error);
	if (rc && first && !tile->held)
		nvs_tensor_release(engine, tensors, parts, tile->pin, NVS_CLEAN, NULL);
	if (!rc && parts && !first)
		tile->pin = pin;
	if (!rc && n > parts)
		gradients_of(pass, i)->pin = pin;
	return rc;
}

static int fetch(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct gradient_tile *gradients = gradients_of(pass, i);
	struct nvs_tensor *tensors[TENSORS];
	unsigned n = tensors_of(pass, i, tensors);
	bool shared = gradients && share(pass, gradients);
	int rc = pin_tensors(pass, i, tensors, n - shared, error);

	if (rc && shared)
		leave_unread(pass, gradients);
	else if (!rc && gradients && !shared)
		begin_sharing(pass, gradients);
	return rc;
}

static void drop_gradients(struct pass *pass, size_t tile)
{
	struct gradient_tile *gradients = gradients_of(pass, tile);
	bool done;

	if (!gradients)
		return;
	pthread_mutex_lock(&pass->lock);
	done = !--gradients->users;
	gradients->sharers -= done;
	pthread_mutex_unlock(&pass->lock);
	/* The last one discards them before they can be written back. */
	if (done)
		gradients_discard(pass->optimizer, gradients);
	else
		stop_sharing(pass, gradients);
}

/* Unpins a changed tile and starts to write it. */
static int write_tile(struct pass *pass, struct tile *tile, struct nvs_error *error)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	int rc = nvs_tensor_release(engine, tile->parts, PARTS, tile->pin, NVS_DIRTY, error);

	tile->held = tile->changed = false;
	if (!rc)
		rc = nvs_tensor_swap_out(engine, tile->parts, PARTS, error);
	if (!rc && !pass->optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write)
		rc = nvs_tensor_wait(engine, tile->parts, PARTS, 0, -1, error);
	return rc;
}

/* Unpins a tile, unchanged. */
static int give_up(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct tile *tile = &pass->optimizer->tiles[i];

	return nvs_tensor_release(pass->optimizer->engine, tile->parts, parts_of(pass, i),
				  tile->pin, NVS_CLEAN, error);
}

static int finish(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct tile *tile = &pass->optimizer->tiles[i];

	drop_gradients(pass, i);
	if (pass->kind->gradients)
		tile->done = true;
	if (pass->kind->writes && !tile->failed)
		tile->fresh = false;
	if (!is_offloaded(pass, i))
		return 0;
	if (tile->failed)
		return tile->held ? 0 : give_up(pass, i, error);
	if (pass->kind->writes && !stays(pass, i))
		return write_tile(pass, tile, error);
	if (pass->kind->writes)
		tile->held = tile->changed = true;
	else if (!tile->held)
		return give_up(pass, i, error);
	return 0;
}

/* Releases a fetched tile that will not be computed. A failed read has unpinned it already. */
static void abandon(struct pass *pass, size_t i)
{
	struct nvs_engine *engine = pass->optimizer->engine;
	struct tile *tile = &pass->optimizer->tiles[i];
	struct gradient_tile *gradients = gradients_of(pass, i);

	if (is_offloaded(pass, i) && !tile->held) {
		/* If the drive hangs, the tile lands later. */
		engine_wait_landed(engine, tile->parts, parts_of(pass, i), NULL);
		for (unsigned part = 0; part < parts_of(pass, i); part++)
			engine_unpin(engine, tile->parts[part], tile->pin);
	}
	if (gradients)
		leave_unread(pass, gradients);
}

/* ---- Threads ---- */

static bool take_from(struct pass *pass, size_t tile, uint64_t *taken, struct slice *slice)
{
	uint64_t numel = pass->optimizer->tile_numel;

	*slice = (struct slice){.tile = tile, .from = *taken, .n = numel - *taken};
	if (slice->n > SLICE)
		slice->n = SLICE;
	if (!*taken) {
		pass->optimizer->tiles[tile].slices = (uint32_t)((numel + SLICE - 1) / SLICE);
		pass->nactive++;
	}
	*taken += slice->n;
	return *taken == numel;
}

/* The tensors of a fetched tile, its state and gradients, with their pins. */
struct fetched {
	struct nvs_tensor *tensors[TENSORS];
	uint64_t pins[TENSORS];
	unsigned n;
};

/* Under the lock: another thread may take, finish and discard them as soon as they have landed. */
static struct fetched fetched_of(const struct pass *pass, size_t i)
{
	const struct tile *tile = &pass->optimizer->tiles[i];
	const struct gradient_tile *gradients = gradients_of(pass, i);
	struct fetched fetched;

	fetched.n = tensors_of(pass, i, fetched.tensors);
	for (unsigned k = 0; k < fetched.n; k++)
		fetched.pins[k] = tile->pin;
	if (gradients)
		fetched.pins[fetched.n - 1] = gradients->pin;
	return fetched;
}

static int wait_for_fetched(const struct pass *pass, const struct fetched *fetched, int timeout_ms,
			    struct nvs_error *error)
{
	int rc = 0;

	for (unsigned k = 0; k < fetched->n && !rc; k++)
		rc = nvs_tensor_wait(pass->optimizer->engine, &fetched->tensors[k], 1,
				     fetched->pins[k], timeout_ms, error);
	return rc;
}

/* Whether the front tile may be computed now. */
static bool front_is_open(struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	struct nvs_error error = {.size = sizeof(error)};
	struct fetched fetched;
	int rc;

	if (pass->front == pass->nfetched)
		return false;
	if (pass->front_taken)
		return true;
	/* Without pipeline_write, each tile is computed and written before the next. */
	if (pass->rc ||
	    (pass->nactive && !optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write))
		return false;
	if (!pass->front_landed) {
		fetched = fetched_of(pass, optimizer->queue[pass->front]);
		rc = wait_for_fetched(pass, &fetched, 0, NULL);
		/* An overdue tile may have landed between the two calls. */
		if (rc && rc != -EAGAIN)
			rc = wait_for_fetched(pass, &fetched, 0, &error);
		if (rc && rc != -EAGAIN)
			fail(pass, rc, &error);
		pass->front_landed = !rc;
	}
	return pass->front_landed;
}

/* Tiles in host memory that need no tensors. */
static bool is_at_hand(const struct pass *pass, size_t tile)
{
	return !pass->optimizer->tiles[tile].fetched && pass->kind->wants(pass->optimizer, tile);
}

static bool take_host(struct pass *pass, struct slice *slice)
{
	const struct nvs_optimizer *optimizer = pass->optimizer;

	while (!pass->host_taken && pass->host < optimizer->ntiles && !is_at_hand(pass, pass->host))
		pass->host++;
	if (pass->host == optimizer->ntiles || (pass->rc && !pass->host_taken))
		return false;
	if (take_from(pass, pass->host, &pass->host_taken, slice)) {
		pass->host++;
		pass->host_taken = 0;
	}
	return true;
}

static bool take(struct pass *pass, struct slice *slice)
{
	size_t tile;

	if (!front_is_open(pass))
		return take_host(pass, slice);
	tile = pass->optimizer->queue[pass->front];
	if (take_from(pass, tile, &pass->front_taken, slice)) {
		pass->front++;
		pass->front_taken = 0;
		pass->front_landed = false;
	}
	return true;
}

static int compute(struct pass *pass, const struct slice *slice, unsigned thread)
{
	struct nvs_trace *trace = pass->optimizer->config.trace;
	uint64_t from = clock_ns(), cpu_from = thread_cpu_ns(), to;
	char name[32];
	int rc;

	rc = pass->kind->slice(pass->optimizer, pass->arg, slice->tile, slice->from, slice->n,
			       thread);
	to = clock_ns();
	__atomic_add_fetch(&pass->figures.compute_ns, to - from, __ATOMIC_RELAXED);
	__atomic_add_fetch(&pass->figures.cpu_ns, thread_cpu_ns() - cpu_from, __ATOMIC_RELAXED);
	if (trace) {
		snprintf(name, sizeof(name), "tile %zu", slice->tile);
		trace_thread(trace, TRACE_COMPUTE, name, from, to);
	}
	return rc;
}

/* Ends a slice with its status, and its tile with the last one. */
static void ended(struct pass *pass, const struct slice *slice, int rc)
{
	struct nvs_error error = {.size = sizeof(error)};

	if (rc) {
		error_set(&error, rc, "the computation has failed: %s", nvs_strerror(rc));
		pass->optimizer->tiles[slice->tile].failed = true;
		fail(pass, rc, &error);
	}
	if (--pass->optimizer->tiles[slice->tile].slices)
		return;
	pthread_mutex_unlock(&pass->lock);
	rc = finish(pass, slice->tile, &error);
	pthread_mutex_lock(&pass->lock);
	if (rc)
		fail(pass, rc, &error);
	pass->figures.tiles++;
	pass->nactive--;
	pthread_cond_signal(&pass->progress);
	pthread_cond_broadcast(&pass->work);
}

/* A failed pass releases its fetched tiles, so that the fetcher finds room and sees the error. */
static bool clear_front(struct pass *pass)
{
	size_t tile;

	if (!pass->rc || pass->front == pass->nfetched || pass->front_taken || pass->front_awaited)
		return false;
	tile = pass->optimizer->queue[pass->front++];
	pass->front_landed = false;
	pthread_mutex_unlock(&pass->lock);
	abandon(pass, tile);
	pthread_mutex_lock(&pass->lock);
	pthread_cond_signal(&pass->progress);
	return true;
}

static bool is_over(const struct pass *pass)
{
	return pass->all_fetched && pass->front == pass->nfetched;
}

/* Waits for the front tile to land, or for the thread that already does. */
static void wait_for_work(struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;
	uint64_t from = clock_ns(), to;
	bool open = pass->front < pass->nfetched && !pass->front_landed && !pass->front_awaited &&
		    (!pass->nactive ||
		     optimizer->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write);
	struct fetched fetched;

	if (open) {
		fetched = fetched_of(pass, optimizer->queue[pass->front]);
		pass->front_awaited = true;
		pthread_mutex_unlock(&pass->lock);
		/* The thread that takes the tile checks the result. */
		wait_for_fetched(pass, &fetched, -1, NULL);
		pthread_mutex_lock(&pass->lock);
		pass->front_awaited = false;
		pthread_cond_broadcast(&pass->work);
	} else {
		pthread_cond_wait(&pass->work, &pass->lock);
	}
	to = clock_ns();
	pass->figures.stalls++;
	pass->figures.stall_ns += to - from;
	if (!open)
		trace_thread(optimizer->config.trace, TRACE_WAIT, "wait for a tile", from, to);
}

static void run_thread(void *arg, unsigned thread)
{
	struct pass *pass = arg;
	struct slice slice;
	int rc;

	pthread_mutex_lock(&pass->lock);
	for (;;) {
		if (take(pass, &slice)) {
			pthread_mutex_unlock(&pass->lock);
			rc = compute(pass, &slice, thread);
			pthread_mutex_lock(&pass->lock);
			ended(pass, &slice, rc);
		} else if (!clear_front(pass)) {
			if (is_over(pass))
				break;
			wait_for_work(pass);
		}
	}
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

static void push(struct pass *pass, size_t tile)
{
	pthread_mutex_lock(&pass->lock);
	pass->optimizer->queue[pass->nfetched++] = tile;
	pthread_cond_broadcast(&pass->work);
	pthread_mutex_unlock(&pass->lock);
}

/* Also a write that a later attempt made good: the caller must learn of the failure. */
static int check_writes(const struct nvs_optimizer *optimizer, uint64_t failures,
			struct nvs_error *error)
{
	struct nvs_error last = {.size = sizeof(last)};

	if (engine_write_failures(optimizer->engine, &last) == failures)
		return 0;
	error_copy(error, &last);
	return last.code;
}

int wait_landed(struct nvs_optimizer *optimizer, uint64_t failures, struct nvs_error *error)
{
	int rc = engine_wait_landed(optimizer->engine, optimizer->offloaded,
				    PARTS * optimizer->noffloaded, error);

	return rc ? rc : check_writes(optimizer, failures, error);
}

static int fetch_or_write(struct pass *pass, size_t i, struct nvs_error *error)
{
	struct tile *tile = &pass->optimizer->tiles[i];
	int rc = check_writes(pass->optimizer, pass->write_failures, error);

	if (rc)
		return rc;
	if (!pass->kind->wants(pass->optimizer, i)) {
		if (pass->kind->writes && tile->held && !stays(pass, i))
			return write_tile(pass, tile, error);
		return 0;
	}
	rc = fetch(pass, i, error);
	if (!rc)
		push(pass, i);
	return rc;
}

static void fetch_all(struct pass *pass)
{
	const struct nvs_optimizer *optimizer = pass->optimizer;
	struct nvs_error error = {.size = sizeof(error)};
	int rc = 0;

	for (size_t i = 0; i < optimizer->noffloaded && !rc && may_fetch(pass); i++)
		rc = fetch_or_write(pass, mirrored(pass, i), &error);
	for (size_t i = optimizer->noffloaded; i < optimizer->ntiles && !rc && may_fetch(pass); i++)
		if (optimizer->tiles[i].fetched)
			rc = fetch_or_write(pass, i, &error);
	pthread_mutex_lock(&pass->lock);
	if (rc)
		fail(pass, rc, &error);
	pass->all_fetched = true;
	pthread_cond_broadcast(&pass->work);
	pthread_mutex_unlock(&pass->lock);
}

/* Counts the users of gradients before the threads start and change the counts. */
static void count_users(const struct pass *pass)
{
	struct nvs_optimizer *optimizer = pass->optimizer;

	for (size_t i = 0; i < optimizer->ngradients; i++)
		optimizer->gradients[i].users = 0;
	for (size_t i = 0; i < optimizer->ntiles; i++) {
		struct gradient_tile *gradients = gradients_of(pass, i);
		bool used = gradients && pass->kind->wants(optimizer, i);

		if (used)
			gradients->users++;
		optimizer->tiles[i].fetched = used && !is_offloaded(pass, i);
		optimizer->tiles[i].failed = false;
	}
}

int pass_run(struct nvs_optimizer *optimizer, const struct pass_kind *kind, void *arg,
	     struct pass_figures *figures, struct nvs_error *error)
{
	struct pass pass = {
		.optimizer = optimizer,
		.kind = kind,
		.arg = arg,
		.reverse = optimizer->walks & 1,
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.work = PTHREAD_COND_INITIALIZER,
		.progress = PTHREAD_COND_INITIALIZER,
		.host = optimizer->noffloaded,
	};
	struct nvs_error failure = {.size = sizeof(failure)};
	int rc;

	count_users(&pass);
	pass.write_failures = engine_write_failures(optimizer->engine, &failure);
	walks_end(optimizer);
	threads_start(optimizer->threads, run_thread, &pass);
	fetch_all(&pass);
	threads_join(optimizer->threads);
	rc = wait_landed(optimizer, pass.write_failures, &failure);
	if (rc)
		fail(&pass, rc, &failure);
	if (figures)
		*figures = pass.figures;
	if (pass.rc)
		error_copy(error, &pass.error);
	return pass.rc;
}
