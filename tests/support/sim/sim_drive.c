/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated drive as an I/O engine, and its clock: when I/Os are served and which completes
 * next. sim_move.c moves the bytes.
 */
#include "support/sim/sim_internal.h"

#include "base/clock.h"

#define AWAIT_MS 20000
/* Polling in sim_await_workers(). */
#define LOOK_NS		20000u
#define LOOK_TIMES	50u
#define LOOK_TIMES_IDLE 4u

uint64_t sim_mix(uint64_t a, uint64_t b)
{
	uint64_t state = a ^ (b * UINT64_C(0xd6e8feb86659fd93));

	return next_random(&state);
}

struct sim *sim_enter(struct sim *sim)
{
	inject_pause();
	pthread_mutex_lock(&sim->lock);
	return sim;
}

void sim_leave(struct sim **entered)
{
	pthread_mutex_unlock(&(*entered)->lock);
	inject_resume();
}

struct sim *sim_open(const struct sim_drive *drive)
{
	struct sim *sim = calloc(1, sizeof(*sim));

	MUST(sim);
	sim->drive = *drive;
	pthread_mutex_init(&sim->lock, NULL);
	pthread_cond_init(&sim->changed, NULL);
	TAILQ_INIT(&sim->flights);
	TAILQ_INIT(&sim->writes);
	TAILQ_INIT(&sim->names);
	return sim;
}

void sim_close(struct sim *sim)
{
	MUST(LIST_EMPTY(&sim->queues) && TAILQ_EMPTY(&sim->flights));
	MUST(TAILQ_EMPTY(&sim->writes) && TAILQ_EMPTY(&sim->names));
	sim_forget_files(sim);
	pthread_mutex_destroy(&sim->lock);
	pthread_cond_destroy(&sim->changed);
	free(sim);
}

/* ---- The clock ---- */

/* The service time. The bytes of one direction move one I/O after the other. */
static uint64_t service_ns(struct sim *sim, const struct sim_flight *flight)
{
	const struct sim_drive *drive = &sim->drive;
	const struct io *io = flight->io;
	uint64_t now = sim->counts.now_ns, per_s = drive->bytes_per_s[io->write], ns;
	uint64_t *bus = &sim->bus_free_ns[!drive->moving_ns && io->write];

	*bus = *bus > now ? *bus : now;
	if (drive->moving_ns)
		*bus += drive->moving_ns(io->write, io->nbytes, sim->in_service);
	else if (per_s)
		*bus += (io->nbytes * UINT64_C(1000000000) + per_s / 2) / per_s;
	ns = *bus - now + drive->latency_ns;
	if (drive->jitter_ns)
		ns += sim_mix(flight->chance, 'j') % (drive->jitter_ns + 1);
	return ns;
}

static void serve_waiting(struct sim *sim)
{
	struct sim_flight *flight;

	for (flight = TAILQ_FIRST(&sim->flights); flight; flight = TAILQ_NEXT(flight, link)) {
		if (sim->drive.parallel && sim->in_service >= sim->drive.parallel)
			return;
		if (flight->served)
			continue;
		sim->in_service++;
		flight->served = true;
		flight->due_ns = sim->counts.now_ns + (sim->crashed ? 0 : service_ns(sim, flight));
		if (!sim->crashed && flight->faulty && flight->fault.fault == SIM_LATE)
			flight->due_ns += flight->fault.delay_ns;
	}
}

static bool comes_before(const struct sim *sim, const struct sim_flight *a,
			 const struct sim_flight *b)
{
	uint64_t now = sim->counts.now_ns;
	uint64_t a_due = a->due_ns > now ? a->due_ns : now;
	uint64_t b_due = b->due_ns > now ? b->due_ns : now;

	if (sim->drive.reorder && a_due == b_due)
		return sim_mix(a->chance, 'o') < sim_mix(b->chance, 'o');
	return a->due_ns < b->due_ns;
}

/* Of the I/Os in service whose direction is not held, the one that completes next; or NULL. */
static struct sim_flight *next_due(struct sim *sim, unsigned held)
{
	struct sim_flight *next = NULL, *flight;

	for (flight = TAILQ_FIRST(&sim->flights); flight; flight = TAILQ_NEXT(flight, link)) {
		if (!flight->served || held & 1u << flight->io->write)
			continue;
		if (!next || comes_before(sim, flight, next))
			next = flight;
	}
	return next;
}

static void complete(struct sim *sim, struct sim_flight *flight)
{
	struct sim_queue *queue = flight->queue;
	struct io *io = flight->io;

	if (flight->due_ns > sim->counts.now_ns)
		sim->counts.now_ns = flight->due_ns;
	sim_count_down(sim);
	io->result = sim_move(sim, flight);
	sim->counts.ios[io->write]++;
	if (io->result > 0)
		sim->counts.bytes[io->write] += (uint64_t)io->result;
	sim->counts.faults += flight->faulty;
	sim->counts.in_flight--;
	sim->in_service--;
	TAILQ_REMOVE(&sim->flights, flight, link);
	flight->io = NULL;
	queue->done[queue->ndone++] = io;
	serve_waiting(sim);
	pthread_cond_broadcast(&sim->changed);
}

static void complete_due(struct sim *sim)
{
	struct sim_flight *flight = next_due(sim, sim->held);

	while (flight && flight->due_ns <= sim->counts.now_ns) {
		complete(sim, flight);
		flight = next_due(sim, sim->held);
	}
}

static bool satisfied(const struct sim_queue *queue)
{
	return queue->ndone >= queue->awaited || queue->interrupted ||
	       (queue->woken && queue->awaited == 1);
}

/* Whether every worker, or every one with I/Os in flight, waits for a completion. */
static bool all_wait(const struct sim *sim, bool idle_too)
{
	const struct sim_queue *queue;

	for (queue = LIST_FIRST(&sim->queues); queue; queue = LIST_NEXT(queue, link))
		if ((queue->outstanding || idle_too) && (!queue->awaited || satisfied(queue)))
			return false;
	return true;
}

/* A queue that waits for all of its several I/Os does not submit more. */
static bool has_room(const struct sim *sim)
{
	const struct sim_queue *queue;

	for (queue = LIST_FIRST(&sim->queues); queue; queue = LIST_NEXT(queue, link)) {
		bool drains = queue->outstanding > 1 && queue->awaited == queue->outstanding;

		if (queue->outstanding && queue->outstanding < queue->options.depth && !drains)
			return true;
	}
	return false;
}

static void pass_time(struct sim *sim)
{
	struct sim_flight *flight = all_wait(sim, false) ? next_due(sim, sim->held) : NULL;

	if (!flight) {
		pthread_cond_wait(&sim->changed, &sim->lock);
		return;
	}
	/* More I/Os may still come before the clock advances. */
	if (sim->drive.patience_us && !sim->in_vain && has_room(sim)) {
		sim->in_vain = cond_wait_until(&sim->changed, &sim->lock,
					       clock_ns() + sim->drive.patience_us * 1000u) != 0;
		return;
	}
	complete(sim, flight);
	complete_due(sim);
}

/* ---- The engine ---- */

static int queue_open(void **out, const struct engine_options *options, struct engine_facts *facts,
		      char *reason, size_t reason_bytes)
{
	struct sim *sim = options->arg;
	ENTER(sim);
	struct sim_queue *queue = calloc(1, sizeof(*queue));

	(void)reason;
	(void)reason_bytes;
	MUST(queue);
	queue->flights = calloc(options->depth, sizeof(*queue->flights));
	queue->done = calloc(options->depth, sizeof(struct io *));
	MUST(queue->flights && queue->done);
	queue->sim = sim;
	queue->options = *options;
	for (unsigned i = 0; i < ENGINE_FILES; i++)
		queue->files[i].fd = -1;
	queue->facts = facts;
	facts->fixed_buffers = facts->fixed_files = true;
	LIST_INSERT_HEAD(&sim->queues, queue, link);
	*out = queue;
	return 0;
}

static void take(struct sim_queue *queue, struct io *io)
{
	struct sim *sim = queue->sim;
	struct sim_flight *flight = &queue->flights[io->index];
	const char *data = io->data, *region;
	unsigned slot = 0;
	uint64_t place;

	MUST(io->nbytes && io->index < queue->options.depth && !flight->io);
	if (io->file_slot >= 0)
		MUST(queue->files[io->file_slot].fd == io->fd);
	if (io->buffer_slot >= 0) {
		region = queue->regions[io->buffer_slot].data;
		MUST(region && data >= region &&
		     data + io->nbytes <= region + queue->regions[io->buffer_slot].nbytes);
	}
	*flight = (struct sim_flight){.queue = queue, .io = io};
	/* Its random number is of its direction, place and the number of earlier I/Os there. The
	 * file counts by its lowest slot, which does not depend on descriptors or inodes. */
	while (io->file_slot >= 0 && queue->files[slot].file != queue->files[io->file_slot].file)
		slot++;
	place = sim_mix(io->offset, 2 * (io->file_slot < 0 ? ENGINE_FILES : slot) + io->write);
	flight->chance = sim_mix(sim_mix(sim->drive.seed, place),
				 sim->touched[place % SIM_PLACES]++);
	sim_decide(sim, flight);
	TAILQ_INSERT_TAIL(&sim->flights, flight, link);
	queue->outstanding++;
	if (++sim->counts.in_flight > sim->counts.in_flight_max)
		sim->counts.in_flight_max = sim->counts.in_flight;
}

static int queue_submit(void *arg, struct io *const *ios, unsigned n)
{
	struct sim_queue *queue = arg;
	struct sim *sim = queue->sim;
	ENTER(sim);

	MUST(n && queue->outstanding + n <= queue->options.depth);
	sim->in_vain = false;
	for (unsigned i = 0; i < n; i++)
		take(queue, ios[i]);
	serve_waiting(sim);
	queue->facts->submit_calls += queue->options.single_submit ? n : 1;
	pthread_cond_broadcast(&sim->changed);
	return (int)n;
}

static int queue_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct sim_queue *queue = arg;
	struct sim *sim = queue->sim;
	unsigned n;
	ENTER(sim);

	MUST(min <= queue->outstanding && min <= max);
	queue->facts->reap_calls++;
	queue->awaited = min;
	complete_due(sim);
	while (!satisfied(queue))
		pass_time(sim);
	queue->awaited = 0;
	if (min)
		queue->interrupted = false;
	if (min == 1)
		queue->woken = false;
	n = queue->ndone < max ? queue->ndone : max;
	memcpy(ios, queue->done, n * sizeof(struct io *));
	queue->ndone -= n;
	memmove(queue->done, queue->done + n, queue->ndone * sizeof(struct io *));
	queue->outstanding -= n;
	if (!queue->outstanding)
		pthread_cond_broadcast(&sim->changed);
	return (int)n;
}

static void queue_wake(void *arg, bool any)
{
	struct sim_queue *queue = arg;
	ENTER(queue->sim);

	queue->woken |= !any;
	queue->interrupted |= any;
	pthread_cond_broadcast(&queue->sim->changed);
}

static int queue_set_file(void *arg, unsigned slot, int fd)
{
	struct sim_queue *queue = arg;
	ENTER(queue->sim);
	struct sim_file *before, *file = fd >= 0 ? sim_file_of(queue->sim, fd) : NULL;

	MUST(slot < ENGINE_FILES);
	before = queue->files[slot].file;
	queue->files[slot].fd = fd;
	queue->files[slot].file = file;
	if (file)
		file->users++;
	if (before) {
		before->users--;
		sim_file_done(before);
	}
	return 0;
}

static int queue_set_buffer(void *arg, unsigned slot, void *data, size_t nbytes)
{
	struct sim_queue *queue = arg;

	MUST(slot < ENGINE_BUFFERS);
	queue->regions[slot].data = data;
	queue->regions[slot].nbytes = nbytes;
	return 0;
}

static void queue_close(void *arg)
{
	struct sim_queue *queue = arg;

	MUST(!queue->outstanding);
	for (unsigned i = 0; i < ENGINE_FILES; i++)
		queue_set_file(queue, i, -1);
	ENTER(queue->sim);
	LIST_REMOVE(queue, link);
	free(queue->flights);
	free(queue->done);
	free(queue);
}

const struct engine_ops engine_sim = {
	.name = "sim",
	.open = queue_open,
	.submit = queue_submit,
	.reap = queue_reap,
	.wake = queue_wake,
	.set_file = queue_set_file,
	.set_buffer = queue_set_buffer,
	.close = queue_close,
};

/* ---- The test's controls ---- */

void sim_fault(struct sim *sim, const struct sim_rule *rule)
{
	ENTER(sim);

	MUST(sim->nrules < SIM_RULES_MAX);
	sim->rules[sim->nrules++] = (struct sim_active_rule){.rule = *rule};
}

void sim_no_faults(struct sim *sim)
{
	ENTER(sim);

	sim->nrules = 0;
}

void sim_fail(struct sim *sim, enum nvs_direction direction, uint64_t after, int error,
	      uint64_t times)
{
	sim_fault(sim, &(const struct sim_rule){.fault = SIM_ERROR,
						.error = error,
						.reads = direction == NVS_READ,
						.writes = direction == NVS_WRITE,
						.first = after + 1,
						.times = times});
}

void sim_hold(struct sim *sim, unsigned directions)
{
	ENTER(sim);

	sim->held |= directions;
}

void sim_go(struct sim *sim, unsigned directions)
{
	ENTER(sim);

	sim->held &= ~directions;
	pthread_cond_broadcast(&sim->changed);
}

void sim_await_workers(struct sim *sim)
{
	ENTER(sim);

	for (unsigned i = 0; i < LOOK_TIMES && !all_wait(sim, true); i++) {
		/* A worker without I/Os may be idle for good. */
		if (i >= LOOK_TIMES_IDLE && all_wait(sim, false))
			break;
		cond_wait_until(&sim->changed, &sim->lock, clock_ns() + LOOK_NS);
	}
}

unsigned sim_complete(struct sim *sim, unsigned n)
{
	struct sim_flight *flight;
	unsigned did = 0;
	ENTER(sim);

	for (; did < n && (flight = next_due(sim, 0)) != NULL; did++)
		complete(sim, flight);
	return did;
}

void sim_get(struct sim *sim, struct sim_counts *counts)
{
	ENTER(sim);

	*counts = sim->counts;
}

uint64_t sim_ios(struct sim *sim, enum nvs_direction direction)
{
	ENTER(sim);

	return sim->counts.ios[direction];
}

void sim_forget_counts(struct sim *sim)
{
	ENTER(sim);

	for (int direction = 0; direction < 2; direction++)
		sim->counts.ios[direction] = sim->counts.bytes[direction] = 0;
}

bool sim_await_in_flight(struct sim *sim, uint64_t n)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;
	ENTER(sim);

	while (sim->counts.in_flight < n && !rc)
		rc = cond_wait_until(&sim->changed, &sim->lock, deadline);
	return !rc;
}
