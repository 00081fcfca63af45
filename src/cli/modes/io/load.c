/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Submits I/Os and waits for them in batches, the oldest first. A late I/O starves no queue,
 * because the window holds twice what the queues do.
 */
#include "cli/modes/io/load.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/memory/huge_map.h"
#include "base/memory/room.h"
#include "cli/progress.h"
#include "cli/stop.h"

#define MEMORY_MIN ((uint64_t)8 << 20)
/*
 * I/Os in the window, as far as MEMORY_MIN allows: with small depths, this thread then wakes up
 * once a batch instead of once an I/O.
 */
#define WINDOW_MIN	256
#define BATCHES		8  /* batches in a window; 2 if half the window fills the queues twice */
#define RATE_PARTS_IN_S 20 /* batches in a second at the job's rate */

/* A pass in progress. */
struct flow {
	const struct io_pass *pass;
	uint64_t started_ns;
	uint64_t submitted_bytes, done_bytes;
	uint64_t submitted, done; /* I/Os submitted and completed; those between are in the ring */
	uint32_t window, batch;
	struct io_step next; /* drawn from the sequence, and not submitted yet */
	bool drawn;
	bool over; /* the rate allows no more before the end */
};

/* ---- Memory ---- */

int io_load_open(struct io_load *load, uint64_t depth, uint64_t longest, struct nvs_error *error)
{
	uint64_t nslots = 2 * depth < WINDOW_MIN ? WINDOW_MIN : 2 * depth;
	uint64_t nbytes = 2 * depth * longest;

	assert(depth && longest);
	if (nbytes < MEMORY_MIN)
		nbytes = MEMORY_MIN;
	load->memory_bytes = round_to_pages(nbytes);
	load->depth = depth;
	load->nslots = (uint32_t)nslots;
	load->slots = calloc(load->nslots, sizeof(*load->slots));
	load->requests = calloc(load->nslots, sizeof(struct nvs_request *));
	if (memory_room_check(load->memory_bytes, "iodepth", "two I/Os for each of the depth",
			      "give a smaller --iodepth or --bs", error))
		return -ENOMEM;
	load->memory = huge_map(load->memory_bytes, NULL);
	if (!load->slots || !load->requests || !load->memory)
		return io_refuse(error, -ENOMEM,
				 "no memory for %" PRIu64 " I/Os of %" PRIu64 " bytes", 2 * depth,
				 longest);
	return 0;
}

void io_load_close(struct io_load *load)
{
	if (load->memory)
		munmap(load->memory, load->memory_bytes);
	free(load->requests);
	free(load->slots);
	load->memory = NULL;
	load->requests = NULL;
	load->slots = NULL;
}

/* ---- Passes ---- */

static void flow_begin(struct flow *flow, const struct io_load *load, const struct io_pass *pass)
{
	uint64_t rate = pass->paced ? load->options->rate : 0;
	uint64_t in_part = rate / RATE_PARTS_IN_S / pass->longest;
	uint64_t fit = load->memory_bytes / pass->longest;

	*flow = (struct flow){.pass = pass, .started_ns = clock_ns()};
	flow->window = fit < load->nslots ? (uint32_t)fit : load->nslots;
	assert(flow->window);
	flow->batch = flow->window / (flow->window >= 4 * load->depth ? 2 : BATCHES);
	if (!flow->batch)
		flow->batch = 1;
	flow->window -= flow->window %
			flow->batch; /* a multiple of batches, so that none wraps around the ring */
	if (rate && in_part < flow->batch)
		flow->batch = in_part ? (uint32_t)in_part : 1;
	progress_begin(pass->name, pass->runtime_ns ? pass->runtime_ns : pass->nbytes);
}

static void flow_moved(const struct flow *flow)
{
	progress_update(flow->pass->runtime_ns ? clock_ns() - flow->started_ns : flow->done_bytes,
			flow->done_bytes);
}

static bool flow_over(const struct flow *flow)
{
	const struct io_pass *pass = flow->pass;

	return flow->over || stop_signal() || flow->submitted_bytes >= pass->nbytes ||
	       (pass->runtime_ns && clock_ns() - flow->started_ns >= pass->runtime_ns);
}

static struct nvs_transfer *place_of(const struct io_load *load, const struct flow *flow,
				     uint64_t n)
{
	return load->slots + n % flow->window;
}

/* Draws the next I/O of the sequence into its slot; false if it conflicts with one in flight. */
static bool draw(struct io_load *load, struct flow *flow, uint64_t n)
{
	const struct io_step *step = &flow->next;

	if (!flow->drawn)
		io_sequence_next(flow->pass->sequence, &flow->next);
	flow->drawn = !io_contents_hold(load->contents, step->offset, step->nbytes);
	if (flow->drawn)
		return false;
	assert(step->nbytes <= flow->pass->longest);
	*place_of(load, flow, n) = (struct nvs_transfer){
		.size = sizeof(struct nvs_transfer),
		.file = load->file->file,
		.direction = step->direction,
		.data = load->memory + n % flow->window * flow->pass->longest,
		.nbytes = step->nbytes,
		.offset = step->offset,
	};
	return true;
}

static void make_contents(struct io_load *load, const struct nvs_transfer *transfers, uint32_t n)
{
	uint64_t from = thread_cpu_ns() / 1000;

	for (uint32_t i = 0; i < n; i++)
		if (transfers[i].direction == NVS_WRITE)
			io_contents_make(load->contents, transfers[i].offset, transfers[i].nbytes,
					 transfers[i].data);
	load->data_us += thread_cpu_ns() / 1000 - from;
}

/* Counts differences, and describes the first one; all transfers are compared. */
static void compare_contents(struct io_load *load, const struct nvs_transfer *transfers, uint32_t n)
{
	struct bench_result *result = load->result;
	uint64_t from = thread_cpu_ns() / 1000;
	struct nvs_error error = {.size = sizeof(error)};

	for (uint32_t i = 0; i < n; i++)
		if (transfers[i].direction == NVS_READ &&
		    io_contents_compare(load->contents, load->file->path, transfers[i].offset,
					transfers[i].nbytes, transfers[i].data,
					&result->verified_bytes, &error) &&
		    !result->verify_errors++)
			load->difference = error;
	load->data_us += thread_cpu_ns() / 1000 - from;
}

/* The number of slots from `first` to `end` that are contiguous in the ring. */
static uint32_t run_of(const struct flow *flow, uint64_t first, uint64_t end)
{
	uint64_t to_end = flow->window - first % flow->window, n = end - first;

	if (n > to_end)
		n = to_end;
	return n < flow->batch ? (uint32_t)n : flow->batch;
}

/* Draws as much of a batch as the window and the sequence allow. */
static uint32_t draw_batch(struct io_load *load, struct flow *flow, uint64_t nbytes[2])
{
	struct nvs_transfer *transfers = place_of(load, flow, flow->submitted);
	uint32_t room = run_of(flow, flow->submitted, flow->done + flow->window), n = 0;

	while (n < room && flow->submitted_bytes < flow->pass->nbytes &&
	       draw(load, flow, flow->submitted + n)) {
		nbytes[transfers[n].direction] += transfers[n].nbytes;
		flow->submitted_bytes += transfers[n++].nbytes;
	}
	return n;
}

/* Sleeps until the job's rate allows the bytes; false if the pass ends first. */
static bool pace(struct io_load *load, const uint64_t nbytes[2])
{
	for (int d = NVS_READ; d <= NVS_WRITE; d++)
		if (nbytes[d] && !job_pace(load->watch, d, nbytes[d]))
			return false;
	return true;
}

static void release_contents(struct io_load *load, const struct nvs_transfer *transfers, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		io_contents_release(load->contents, transfers[i].offset, transfers[i].nbytes);
}

/* Submits a batch of *n I/Os. */
static int submit_batch(struct io_load *load, struct flow *flow, uint32_t *n)
{
	struct nvs_transfer *transfers = place_of(load, flow, flow->submitted);
	uint64_t nbytes[2] = {0};
	int rc;

	*n = draw_batch(load, flow, nbytes);
	if (*n && flow->pass->paced && !pace(load, nbytes)) {
		release_contents(load, transfers, *n);
		flow->over = true;
		*n = 0;
	}
	if (!*n)
		return 0;
	if (flow->pass->make)
		make_contents(load, transfers, *n);
	rc = nvs_aio_submit(load->aio, transfers, *n,
			    load->requests + flow->submitted % flow->window, &load->result->error);
	if (!rc)
		flow->submitted += *n;
	return rc;
}

static int wait_for(struct io_load *load, struct flow *flow, uint32_t n, struct nvs_error *error)
{
	struct nvs_request **requests = load->requests + flow->done % flow->window;
	int rc = nvs_aio_wait(load->aio, requests, n, -1, error);

	load->hangs = rc == -ETIMEDOUT;
	for (uint32_t i = 0; i < n && !load->hangs; i++)
		nvs_request_close(requests[i]);
	return rc;
}

/* Waits for the oldest batch. */
static int complete_batch(struct io_load *load, struct flow *flow)
{
	struct nvs_transfer *transfers = place_of(load, flow, flow->done);
	uint32_t n = run_of(flow, flow->done, flow->submitted);
	int rc = wait_for(load, flow, n, &load->result->error);

	if (rc)
		return rc;
	if (flow->pass->compare)
		compare_contents(load, transfers, n);
	release_contents(load, transfers, n);
	for (uint32_t i = 0; i < n; i++) {
		load->moved[transfers[i].direction] += transfers[i].nbytes;
		flow->done_bytes += transfers[i].nbytes;
	}
	flow->done += n;
	flow_moved(flow);
	return 0;
}

/* After an error was reported: ignores those of the remaining I/Os, which add no information. */
static void drain(struct io_load *load, struct flow *flow)
{
	struct nvs_error error = {.size = sizeof(error)};

	while (flow->done < flow->submitted && !load->hangs) {
		uint32_t n = run_of(flow, flow->done, flow->submitted);

		wait_for(load, flow, n, &error);
		flow->done += n;
	}
}

int io_load_run(struct io_load *load, const struct io_pass *pass)
{
	struct flow flow;
	uint32_t n;
	int rc = 0;

	flow_begin(&flow, load, pass);
	for (;;) {
		do {
			n = 0;
			if (!flow_over(&flow))
				rc = submit_batch(load, &flow, &n);
		} while (n && !rc && flow.submitted - flow.done + flow.batch <= flow.window);
		if (rc || flow.done == flow.submitted)
			break;
		rc = complete_batch(load, &flow);
		if (rc)
			break;
	}
	drain(load, &flow);
	progress_end();
	return rc;
}
