/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs: tensors that lie side by side both in the store and in memory move as one transfer, so a
 * layer of small tensors takes a few long I/Os. They are built under the lock, and launched without
 * it. Tensors of files of others begin anywhere and share units: a large one is a run by itself, of
 * whole units around it, and small ones that lie together are read to a segment each.
 */
#include "swap/moves/moves.h"

/* The bytes that a tensor's transfer moves: whole units in the pool. */
static uint64_t bytes_moved(const struct nvs_tensor *tensor)
{
	if (is_external(tensor))
		return tensor->rest->part_nbytes;
	return tensor->engine->of_files ? tensor->rest->loaded : tensor->extent;
}

/* Where they begin in the store, behind its `place`. */
static uint64_t first_moved(const struct nvs_tensor *tensor)
{
	return is_external(tensor) ? tensor->rest->skip + tensor->rest->part_offset : 0;
}

static enum tensor_io io_of(enum nvs_direction direction)
{
	return direction == NVS_READ ? IO_READING : IO_WRITING;
}

static void run_check(const struct transfer *run)
{
	if (!STATE_CHECKS)
		return;

	const struct nvs_tensor *first = run->user;
	uint32_t unit = store_unit(first->engine->store);

	assert(run->direction == NVS_READ || run->direction == NVS_WRITE);
	assert(!run->requests);
	assert(run == &first->rest->transfer && first->run_first == first);
	assert(first->io == io_of(run->direction));
	assert(run->file == store_file(first->engine->store));
	assert(run->data == first->data && run->nbytes && run->status <= 0);
	assert(run->offset == first->place + first_moved(first));
	assert(is_external(first) || first->engine->of_files || run->nbytes % unit == 0);
	assert(is_part(first) || first->engine->of_files || run->offset % unit == 0);
	assert(!run->segments ||
	       (first->engine->of_files && run->segments == &first->rest->segment));
	assert(is_external(first) || run->segments ||
	       pool_has(first->engine->pool, run->data, run->nbytes));
	assert(run->nbytes <= UINT64_MAX - run->offset);
	assert(!first->rest->parts || (run->direction == NVS_READ && is_external(first)));
}

void runs_check(const struct transfer *list)
{
	if (!STATE_CHECKS)
		return;
	for (const struct transfer *run = list; run; run = run->state.next)
		run_check(run);
}

void run_members_check(const struct transfer *run)
{
	if (!STATE_CHECKS)
		return;

	uint64_t at = 0;

	run_check(run);
	for (const struct nvs_tensor *tensor = run->user; tensor; tensor = tensor->run_next) {
		assert(tensor->run_first == run->user && tensor->io == io_of(run->direction));
		assert(tensor->memory != MEMORY_NONE && !tensor->status);
		if (run->segments) {
			assert(tensor->rest->segment.data == tensor->data);
			assert(tensor->rest->segment.offset >= run->offset + at);
			at = tensor->rest->segment.offset - run->offset;
			assert(tensor->rest->segment.nbytes <= run->nbytes - at);
			continue;
		}
		assert(tensor->data == (const char *)run->data + at);
		assert(tensor->place + first_moved(tensor) == run->offset + at);
		at += bytes_moved(tensor);
	}
	assert(run->segments || at == run->nbytes);
}

static void begin_io(struct nvs_tensor *tensor, enum nvs_direction direction)
{
	assert(tensor->memory != MEMORY_NONE && tensor->io == IO_IDLE && !is_listed(tensor));
	if (direction == NVS_WRITE)
		scrub_forgets(&tensor->engine->scrub, tensor);
	tensor->io = io_of(direction);
	tensor->status = 0;
	tensor->unread = false;
	tensor->run_next = NULL;
}

uint64_t busy_ns(const struct nvs_engine *engine, uint64_t now)
{
	const struct move_state *moves = &engine->moves;

	return moves->busy_ns + (runs_in_flight(moves) ? now - moves->busy_from_ns : 0);
}

static void begin_busy(struct nvs_engine *engine, enum nvs_direction direction)
{
	if (!runs_in_flight(&engine->moves))
		engine->moves.busy_from_ns = clock_ns();
	engine->moves.inflight[direction]++;
}

/* ---- Those in flight ---- */

static struct tensor_list *list_of(struct nvs_engine *engine, const struct nvs_tensor *first)
{
	const struct transfer *run = &first->rest->transfer;

	/* A held write is in no list. */
	assert(run->file);
	return &engine->moves.runs[run->direction][run->priority];
}

/* The run in flight is now among those of that priority. */
static void run_moves_to(struct nvs_engine *engine, struct nvs_tensor *first,
			 enum transfer_priority priority)
{
	TAILQ_REMOVE(list_of(engine, first), first, rest->launched);
	TAILQ_INSERT_TAIL(&engine->moves.runs[first->rest->transfer.direction][priority], first,
			  rest->launched);
}

void run_ends(struct nvs_engine *engine, struct nvs_tensor *first)
{
	/* No thread computes its checksum any more. */
	assert(first->rest->sum != SUM_BEGUN);
	TAILQ_REMOVE(list_of(engine, first), first, rest->launched);
}

/* ---- Promoting runs that a call waits for: they move its tensors or make its room ---- */

/* What the kernel has of a run already can't be promoted; the aio layer serves the rest first. A
 * write that waits for a commit is no run yet: its run will have the priority. */
static void promote(struct nvs_engine *engine, struct nvs_tensor *first)
{
	struct transfer *run = &first->rest->transfer;

	if (run->priority == TRANSFER_AWAITED)
		return;
	if (run->file)
		run_moves_to(engine, first, TRANSFER_AWAITED);
	aio_promote(engine->aio, run);
	assert(run->priority == TRANSFER_AWAITED);
}

void runs_promote_new(struct nvs_engine *engine, struct transfer *list)
{
	for (struct transfer *run = list; run; run = run->state.next) {
		if (run->priority == TRANSFER_AWAITED)
			continue;
		run_moves_to(engine, run->user, TRANSFER_AWAITED);
		run->priority = TRANSFER_AWAITED;
	}
}

void tensor_promote(struct nvs_engine *engine, const struct nvs_tensor *tensor)
{
	if (in_flight(tensor))
		promote(engine, tensor->run_first);
}

void room_promote(struct nvs_engine *engine, uint64_t need)
{
	uint64_t free = pool_free_bytes(engine->pool), covered = 0;
	/* If enough is free, but fragmented, any `need` bytes that land may join free runs. */
	uint64_t missing = need > free ? need - free : need;
	/* False: what may be evicted later counts too. */
	bool evictions_suffice = need <= free + engine->room.landing;

	/* From the oldest on, as many as are needed: writes, then reads, awaited ones first; at last
	 * the writes that are held. */
	for (int i = 0; i <= 2 * TRANSFER_PRIORITIES; i++) {
		bool held = i == 2 * TRANSFER_PRIORITIES;
		enum nvs_direction direction = i < TRANSFER_PRIORITIES ? NVS_WRITE : NVS_READ;
		enum transfer_priority priority = i % 2 ? TRANSFER_USUAL : TRANSFER_AWAITED;
		struct nvs_tensor *next,
			*first = held ? engine->moves.held_writes
				      : TAILQ_FIRST(&engine->moves.runs[direction][priority]);

		for (; first && covered < missing; first = next) {
			uint64_t nbytes = evictions_suffice ? first->rest->room : 0;
			const struct nvs_tensor *tensor = evictions_suffice ? NULL : first;

			next = held ? first->run_next : TAILQ_NEXT(first, rest->launched);
			/* Runs are long, and the lines of their tensors cold. */
			for (; tensor; tensor = held ? NULL : tensor->run_next)
				if (tensor->memory == MEMORY_POOL && !tensor->pins.count)
					nbytes += tensor->extent;
			if (nbytes)
				promote(engine, first);
			covered += nbytes;
		}
	}
}

/* ---- Building ---- */

/* Small tensors of files: the run is all bytes from the first one to the end of the last one. */
static void gather(struct transfer *run, struct nvs_tensor *const *tensors, size_t n)
{
	run->nbytes = 0;
	for (size_t i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensors[i];
		uint64_t end = tensor->place + tensor->rest->loaded - run->offset;

		tensor->rest->segment =
			(struct segment){.next = i + 1 < n ? &tensors[i + 1]->rest->segment : NULL,
					 .data = tensor->data,
					 .offset = tensor->place,
					 .nbytes = tensor->rest->loaded};
		run->nbytes = max_u64(run->nbytes, end);
	}
	run->segments = &tensors[0]->rest->segment;
}

static struct transfer *build_run(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
				  enum nvs_direction direction)
{
	struct nvs_tensor *first = tensors[0];
	enum transfer_priority priority = TRANSFER_USUAL;

	assert(first->extent && first->rest->sum != SUM_BEGUN);
	/* A call may wait for a tensor whose write is held. */
	for (size_t i = 0; i < n; i++)
		if (in_flight(tensors[i]) &&
		    tensors[i]->rest->transfer.priority == TRANSFER_AWAITED)
			priority = TRANSFER_AWAITED;
	first->rest->sum = SUM_NONE;
	first->rest->transfer = (struct transfer){.file = store_file(engine->store),
						  .direction = direction,
						  .data = first->data,
						  .offset = first->place + first_moved(first),
						  .user = first,
						  .priority = priority};
	first->rest->room = 0;
	for (size_t i = 0; i < n; i++) {
		if (tensors[i]->io == IO_IDLE)
			begin_io(tensors[i], direction);
		tensors[i]->run_next = i + 1 < n ? tensors[i + 1] : NULL;
		tensors[i]->run_first = first;
		first->rest->transfer.nbytes += bytes_moved(tensors[i]);
		first->rest->room += room_of(tensors[i]);
		tensor_check(tensors[i]);
	}
	if (engine->of_files && n > 1)
		gather(&first->rest->transfer, tensors, n);
	run_members_check(&first->rest->transfer);
	begin_busy(engine, direction);
	TAILQ_INSERT_TAIL(list_of(engine, first), first, rest->launched);
	engine->moves.transfers++;
	return &first->rest->transfer;
}

static struct transfer *build_all(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
				  enum nvs_direction direction)
{
	struct transfer *list = NULL, **tail = &list;
	size_t i = 0;

	sort_by_place(tensors, n, direction);
	while (i < n) {
		uint64_t nbytes;
		size_t length, k = 1;

		/* An empty tensor lands without a transfer. */
		if (!tensors[i]->extent) {
			struct nvs_tensor *tensor = tensors[i++];

			tensor->origin = ORIGIN_CALL;
			if (is_external(tensor)) {
				tensor->content = CONTENT_DRIVE;
				return_external(tensor);
			} else {
				set_clean(tensor);
				stay_or_leave(engine, tensor);
			}
			tensor_check(tensor);
			continue;
		}
		if (engine->of_files)
			length = k = gather_length(engine, tensors + i, n - i);
		else
			length = run_length(engine, tensors + i, n - i, UINT64_MAX, &nbytes);
		for (; k < length && tensors[i + k]->extent; k++) {
			const struct nvs_tensor *tensor = tensors[i + k],
						*before = tensors[i + k - 1];

			if (is_external(tensor) != is_external(before) ||
			    bytes_moved(before) != before->extent || first_moved(tensor) ||
			    tensor->place != before->place + before->extent ||
			    tensor->data != before->data + before->extent)
				break;
		}
		*tail = build_run(engine, tensors + i, k, direction);
		tail = &(*tail)->state.next;
		i += k;
	}
	return list;
}

/* Ends held writes that have no place until a commit has settled the one that failed. */
static void refuse_held(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor;

	while ((tensor = engine->moves.held_writes)) {
		engine->moves.held_writes = tensor->run_next;
		tensor->run_next = NULL;
		/* Nothing was written there. */
		tensor->place = tensor->rest->spare;
		tensor->rest->transfer = (struct transfer){.file = store_file(engine->store),
							   .direction = NVS_WRITE,
							   .data = tensor->data,
							   .nbytes = bytes_moved(tensor),
							   .offset = tensor->place,
							   .user = tensor,
							   .status = -EIO,
							   .error_offset = NOWHERE,
							   .state.phase = TRANSFER_COMPLETED};
		run_check(&tensor->rest->transfer);
		TAILQ_INSERT_TAIL(list_of(engine, tensor), tensor, rest->launched);
		completions_append(engine->events.completions, &tensor->rest->transfer,
				   &tensor->rest->transfer);
	}
}

struct transfer *runs_build(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
			    enum nvs_direction direction)
{
	bool holds = direction == NVS_WRITE && (engine->commit.writing || engine->commit.unsettled);

	lock_check(engine);
	if (!n)
		return NULL;
	assert(direction == NVS_READ || !engine->read_only);
	/* Writes that must wait go behind the others. */
	for (size_t i = 0; holds && i < n;) {
		struct nvs_tensor *tensor = tensors[i];

		if (!tensor->extent || !must_wait(tensor)) {
			i++;
			continue;
		}
		begin_io(tensor, NVS_WRITE);
		tensor->run_first = tensor;
		tensor->rest->room = room_of(tensor);
		tensor->rest->sum = SUM_NONE;
		tensor->rest->transfer = (struct transfer){.direction = NVS_WRITE, .user = tensor};
		begin_busy(engine, NVS_WRITE);
		tensor->run_next = engine->moves.held_writes;
		engine->moves.held_writes = tensor;
		tensors[i] = tensors[--n];
		tensors[n] = tensor;
	}
	if (engine->commit.unsettled && !engine->commit.writing)
		refuse_held(engine);
	return build_all(engine, tensors, n, direction);
}

struct transfer *runs_build_own(struct nvs_engine *engine, struct nvs_tensor **tensors, size_t n,
				enum nvs_direction direction)
{
	for (size_t i = 0; i < n; i++) {
		assert(tensors[i]->io == IO_IDLE);
		assert(!tensors[i]->pins.count || is_copied(tensors[i]));
		tensors[i]->origin = ORIGIN_ENGINE;
	}
	return runs_build(engine, tensors, n, direction);
}

struct transfer *runs_build_held(struct nvs_engine *engine)
{
	struct nvs_tensor *tensor;
	struct transfer *list;
	size_t n = 0;

	if (engine->commit.unsettled)
		refuse_held(engine);
	while ((tensor = engine->moves.held_writes)) {
		assert(!must_wait(tensor));
		engine->moves.held_writes = tensor->run_next;
		engine->scratch[n++] = tensor;
	}
	list = build_all(engine, engine->scratch, n, NVS_WRITE);
	/* They have counted as in flight since they were held, each as a run. */
	engine->moves.inflight[NVS_WRITE] -= n;
	return list;
}

struct transfer *join(struct transfer *first, struct transfer *second)
{
	struct transfer *last = first;

	if (!first)
		return second;
	while (last->state.next)
		last = last->state.next;
	last->state.next = second;
	return first;
}

void launch(struct nvs_engine *engine, struct transfer *list)
{
	unlocked_check(engine);
	if (!list)
		return;
	if (engine->trace) {
		uint64_t now = clock_ns();

		for (struct transfer *run = list; run; run = run->state.next)
			((struct nvs_tensor *)run->user)->rest->launched_ns = now;
	}
	runs_check(list);
	sums_begin(engine, list);
	aio_submit_list(engine->aio, engine->events.completions, list);
}
