/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread makes the calls of the list in order. At the recorded pace it makes each call at its
 * time on the program's clock. The clock stops while a call waits for the drive, so a slower drive
 * delays later calls and a faster one advances them, as in the program.
 */
#include "cli/replay/replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "cli/modes/modes.h"

#define POOL_MIN     (256u << 20)
#define ROOM_WAIT_MS 1000

struct contents {
	uint32_t generation;			/* generation of the pattern; 0: not written yet */
	enum { LANDED, READING, LEASED } state; /* state of the last pin */
	uint64_t *pins;				/* a stack, because a trace does not number pins */
	size_t npins, pins_max;
};

struct replay {
	const struct bench_options *options;
	const struct access_list *list;
	const struct model *model;
	struct bench_engine opened;
	struct contents *contents; /* by tensor */
	uint64_t asked;		   /* bytes that calls requested, for the progress */
	struct bench_result *result;
};

struct call {
	const struct access *of;
	size_t n;
	struct nvs_tensor **tensors;
};

int replay_load(struct bench_job *job, struct nvs_error *error)
{
	struct bench_options *options = &job->options;
	struct access_list *list = calloc(1, sizeof(*list));
	int rc = list ? accesses_load(list, &job->model, options->replay, error) : -ENOMEM;

	job->accesses = list;
	if (rc || options->pool || options->config)
		return rc;
	options->pool = list->pool_bytes;
	if (!options->pool)
		options->pool = list->in_use_max / 4 * 5;
	if (!list->pool_bytes && options->pool < POOL_MIN)
		options->pool = POOL_MIN;
	return 0;
}

void replay_release(struct bench_job *job)
{
	if (job->accesses)
		accesses_free(job->accesses);
	free(job->accesses);
	job->accesses = NULL;
}

int replay_check_pool(const struct bench_job *job, struct nvs_error *error)
{
	uint64_t most = job->accesses->in_use_max;
	uint64_t pool = model_pages(nvs_config_pool_bytes(job->config, job->block));

	if (most <= pool)
		return 0;
	return error_set(error, -E2BIG,
			 "the accesses have %" PRIu64
			 " bytes in use at once, more than the pool of "
			 "%" PRIu64 ": give --pool %" PRIu64 " or more",
			 most, pool, most);
}

/* ---- Calls ---- */

static struct layer only(const struct replay *replay, size_t tensor)
{
	return (struct layer){
		.first = tensor, .n = 1, .nbytes = replay->model->tensors[tensor].nbytes};
}

static struct contents *contents_of(const struct replay *replay, const struct call *call, size_t i)
{
	return &replay->contents[call->of[i].tensor];
}

static int begin_use(struct replay *replay, const struct call *call)
{
	struct nvs_engine *engine = replay->opened.engine;
	struct nvs_error *error = &replay->result->error;
	struct nvs_engine_stats stats = {.size = sizeof(stats), .busy_ns = UINT64_MAX};
	bool lease = call->of->call == ACCESS_LEASE;
	uint64_t from, busy_ns, pin = 0;
	int rc;

	for (size_t i = 0; i < call->n; i++) {
		struct contents *contents = contents_of(replay, call, i);
		size_t max = 2 * contents->pins_max + 1;

		contents->state = lease ? LEASED : READING;
		if (contents->npins == contents->pins_max) {
			uint64_t *pins = realloc(contents->pins, max * sizeof(*pins));

			if (!pins)
				return -ENOMEM;
			contents->pins = pins;
			contents->pins_max = max;
		}
	}
	/* Without I/O in flight only a later release of this list could end a wait for room. */
	do {
		from = clock_ns();
		busy_ns = stats.busy_ns;
		rc = (lease ? nvs_tensor_pin : nvs_tensor_swap_in)(engine, call->tensors, call->n,
								   ROOM_WAIT_MS, &pin, error);
		for (size_t i = 0; i < call->n && !rc; i++) {
			struct contents *contents = contents_of(replay, call, i);

			contents->pins[contents->npins++] = pin;
		}
		if (rc != -ETIMEDOUT || clock_ns() - from < ROOM_WAIT_MS * UINT64_C(1000000))
			return rc;
		if (stop_signal())
			return -EINTR;
		nvs_engine_get_stats(engine, &stats);
	} while (stats.busy_ns != busy_ns);
	return error_set(error, -ENOBUFS,
			 "the pool of %" PRIu64 " bytes has no room for the next tensors beside "
			 "those in use: give a larger --pool",
			 stats.pool.bytes);
}

static int wait_for(struct replay *replay, const struct call *call)
{
	struct bench_result *result = replay->result;
	int rc = 0;

	for (size_t i = 0; i < call->n && !rc; i++) {
		const struct contents *contents = contents_of(replay, call, i);

		rc = nvs_tensor_wait(replay->opened.engine, call->tensors + i, 1,
				     contents->npins ? contents->pins[contents->npins - 1] : 0, -1,
				     &result->error);
	}
	for (size_t i = 0; i < call->n && !rc; i++) {
		struct contents *contents = contents_of(replay, call, i);
		const struct layer tensor = only(replay, call->of[i].tensor);

		if (contents->state == READING && replay->options->verify)
			bench_engine_compare(&replay->opened, &tensor, contents->generation);
		if (contents->state == READING)
			contents->state = LANDED;
	}
	return rc;
}

static int release(struct replay *replay, const struct call *call)
{
	bool dirty = call->of->call == ACCESS_RELEASE_DIRTY, reading = false;
	int rc = 0;

	for (size_t i = 0; i < call->n; i++)
		reading |= contents_of(replay, call, i)->state == READING;
	/* The program may have skipped the wait for a tensor that had landed. */
	if (reading)
		rc = wait_for(replay, call);
	for (size_t i = 0; i < call->n && !rc; i++) {
		struct contents *contents = contents_of(replay, call, i);
		const struct layer one = only(replay, call->of[i].tensor);

		contents->state = LANDED;
		if (dirty && (replay->options->verify || !contents->generation))
			bench_engine_generate(&replay->opened, &one, ++contents->generation);
	}
	for (size_t i = 0; i < call->n && !rc; i++) {
		struct contents *contents = contents_of(replay, call, i);

		rc = nvs_tensor_release(replay->opened.engine, call->tensors + i, 1,
					contents->pins[--contents->npins],
					dirty ? NVS_DIRTY : NVS_CLEAN, &replay->result->error);
	}
	return rc;
}

static int make_call(struct replay *replay, const struct call *call)
{
	struct nvs_engine *engine = replay->opened.engine;
	struct nvs_error *error = &replay->result->error;
	long fetched;

	switch ((enum access_call)call->of->call) {
	case ACCESS_SWAP_IN:
	case ACCESS_LEASE:
		return begin_use(replay, call);
	case ACCESS_WAIT:
		return wait_for(replay, call);
	case ACCESS_RELEASE_CLEAN:
	case ACCESS_RELEASE_DIRTY:
		return release(replay, call);
	case ACCESS_PREFETCH:
		fetched = nvs_tensor_prefetch(engine, call->tensors, call->n, error);
		return fetched < 0 ? (int)fetched : 0;
	case ACCESS_SWAP_OUT:
		return nvs_tensor_swap_out(engine, call->tensors, call->n, error);
	case ACCESS_STEP_BEGIN:
		return nvs_engine_step_begin(engine, error);
	default:
		return nvs_engine_step_end(engine, NULL, error);
	}
}

static int perform_list(struct replay *replay, struct nvs_tensor **tensors, uint64_t loop)
{
	struct bench_result *result = replay->result;
	struct replay_figures *figures = &result->replay;
	const struct access_list *list = replay->list;
	uint64_t since_ns = clock_ns() - figures->stall_ns;
	int rc = 0;

	for (size_t i = 0; i < list->n && !rc;) {
		struct call call = {.of = &list->accesses[i], .tensors = tensors};
		bool waits = call.of->call <= ACCESS_WAIT;
		uint64_t from, data_us = result->data_us;

		do {
			size_t tensor = list->accesses[i++].tensor;

			tensors[call.n++] = replay->opened.tensors[tensor];
			replay->asked += call.of->call <= ACCESS_LEASE
						 ? replay->model->tensors[tensor].nbytes
						 : 0;
		} while (i < list->n && list->accesses[i].joined);
		if (stop_signal())
			return -EINTR;
		if (replay->options->pace == PACE_RECORDED)
			job_sleep_until(since_ns + call.of->at_ns + figures->stall_ns);
		from = clock_ns();
		rc = make_call(replay, &call);
		if (waits)
			figures->stall_ns += clock_ns() - from - (result->data_us - data_us) * 1000;
		figures->calls++;
		progress_update(loop * list->n + i, replay->asked);
	}
	return rc;
}

static int replay_pass(void *arg, bool measured, uint64_t loops, uint64_t runtime_ms)
{
	struct replay *replay = arg;
	struct nvs_tensor **tensors = calloc(replay->list->n, sizeof(struct nvs_tensor *));
	int rc = tensors ? 0 : -ENOMEM;

	(void)measured;
	(void)runtime_ms;
	progress_begin("replay", loops * replay->list->n);
	for (uint64_t loop = 0; loop < loops && !rc; loop++)
		rc = perform_list(replay, tensors, loop);
	progress_end();
	free(tensors);
	return rc ? rc : bench_engine_wait(&replay->opened);
}

int bench_replay(const struct bench_job *job, struct job_watch *watch, struct bench_result *result)
{
	const struct access_list *list = job->accesses;
	struct replay replay = {.options = &job->options,
				.list = list,
				.model = &job->model,
				.contents = calloc(job->model.n, sizeof(struct contents)),
				.result = result};
	int rc;

	if (!replay.contents)
		return -ENOMEM;
	result->replay = (struct replay_figures){
		.recorded_ns = list->wall_ns,
		.recorded_stall_ns = list->stall_ns,
		.recorded_bytes = {list->bytes[NVS_READ], list->bytes[NVS_WRITE]}};
	rc = bench_engine_open(&replay.opened, job, result);
	for (size_t i = 0; i < job->model.n; i++) /* those that are read before they are written */
		replay.contents[i].generation = list->read_first[i];
	rc = rc ?: bench_engine_fill(&replay.opened, 1, list->read_first);
	if (!rc && !stop_signal()) {
		const struct load load = {.options = &job->options,
					  .watch = watch,
					  .result = result,
					  .engine = replay.opened.engine,
					  .run = replay_pass,
					  .arg = &replay};

		rc = load_run(&load);
	}
	if (rc == -EINTR && stop_signal())
		rc = 0;
	rc = bench_engine_close(&replay.opened, rc, result);
	for (size_t i = 0; i < job->model.n; i++)
		free(replay.contents[i].pins);
	free(replay.contents);
	return rc;
}
