/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of drives, each a service time that depends on the I/Os in service, and the rates of all
 * points in virtual time under the tuner's workload.
 */
#include "cli/tune/tune_drives.h"

#include <math.h>

#include "aio/aio.h"
#include "base/numbers.h"
#include "config/config.h"
#include "swap/swap_fixture.h"

#define KIB UINT64_C(1024)
#define US  UINT64_C(1000)
#define MS  (1000 * US)
#define MBS UINT64_C(1000000)

const struct tune_space drive_space = {
	.block_sizes = {64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB},
	.nblock_sizes = 6,
	.queue_depths = {1, 2, 4, 8, 16, 32, 64},
	.nqueue_depths = 7,
	.thread_counts = {1, 2, 4},
	.nthread_counts = 3,
	.ioengines = {NVS_IOENGINE_IO_URING},
	.nioengines = 1,
	.single_submits = true,
	.overlap_events = true,
	.in_flight_max = 256 * MIB,
};

/* ---- Kinds ---- */

#define RATE	  (400 * MBS)
#define DISK_RATE (150 * MBS)

static uint64_t moving_at(uint64_t bytes_per_s, uint64_t nbytes)
{
	return nbytes * 1000 * MS / bytes_per_s;
}

#define MOVES(name, ns)                                                                            \
	static uint64_t name(bool write, uint32_t nbytes, unsigned n)                              \
	{                                                                                          \
		(void)write, (void)n;                                                              \
		return ns;                                                                         \
	}

/* Limited by its bus, once enough is in flight to cover the latency. */
MOVES(saturating, moving_at(RATE, nbytes))
/* Each I/O beyond the eighth slows down all of them. */
MOVES(knee, moving_at(RATE, nbytes) * (100 + (n > 8 ? 4 * (n - 8) : 0)) / 100)
MOVES(writes_collapse, moving_at(RATE, nbytes) * (write && n > 16 ? 3 : 1))
/* A smaller I/O takes as much of the drive's time as one of 256 KiB. */
MOVES(large_blocks, moving_at(RATE, nbytes + 256 * KIB))
/* The same, and I/Os longer than 512 KiB are split. */
MOVES(split_blocks, large_blocks(write, nbytes, n) * (nbytes > 512 * KIB ? 3 : 2) / 2)
/* One I/O at a time, after a seek. */
MOVES(disk, 4 * MS + moving_at(DISK_RATE, nbytes))

const struct drive_kind drive_kinds[] = {
	{"saturating", RATE, 3 * MS, saturating, TUNE_SWAP},
	{"sharp knee", RATE, 30 * MS, knee, TUNE_SWAP},
	{"writes collapse", RATE, 3 * MS, writes_collapse, TUNE_WRITE},
	{"large blocks", RATE, MS, large_blocks, TUNE_SWAP},
	{"split blocks", RATE, MS, split_blocks, TUNE_SWAP},
	{"far away", RATE, 300 * MS, saturating,
	 TUNE_READ}, /* one queue cannot cover that latency */
	{"disk", DISK_RATE, 0, disk, TUNE_SWAP},
};
const size_t ndrive_kinds = COUNT(drive_kinds);

/* ---- The workload over a simulated drive ---- */

static int open_aio(void *arg, const struct nvs_config *config, struct nvs_aio **aio,
		    struct nvs_error *error)
{
	struct drive_load *load = arg;

	return aio_open_with(aio, &config->aio, &engine_sim, load->sim, NULL, error);
}

static uint64_t virtual_ns(void *arg)
{
	struct drive_load *load = arg;
	struct sim_counts counts;

	sim_get(load->sim, &counts);
	return counts.now_ns;
}

static void hold(void *arg, bool on)
{
	struct drive_load *load = arg;

	if (!on) {
		sim_go(load->sim, SIM_ALL);
		return;
	}
	sim_hold(load->sim, SIM_ALL);
	sim_await_workers(load->sim);
}

void drive_load_open(struct drive_load *load, const struct drive_kind *kind,
		     const struct tune_space *space)
{
	const struct sim_drive drive = {
		.latency_ns = kind->latency_ns,
		.moving_ns = kind->moving_ns,
		.still = true,
		.patience_us = 1000,
	};
	const char *path = path_in(temp_directory(), "file");
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	load->load = (struct tune_workload){
		.open = open_aio,
		.now_ns = virtual_ns,
		.hold = hold,
		.arg = load,
		.fd = fd,
		.working_set = 2 * space->in_flight_max + 128 * MIB,
		.memory_bytes = space->in_flight_max + 64 * MIB,
		.writes_max = UINT64_MAX,
	};
	MUST(fd >= 0 && !ftruncate(fd, (off_t)load->load.working_set));
	load->load.memory = mmap(NULL, load->load.memory_bytes, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(load->load.memory != MAP_FAILED);
	load->sim = sim_open(&drive);
	MUST(load->sim);
}

void drive_load_close(struct drive_load *load)
{
	sim_close(load->sim);
	close(load->load.fd);
	munmap(load->load.memory, load->load.memory_bytes);
}

/* ---- The rates of points ---- */

/* I/Os measured, besides eight times the total depth */
#define IOS_COUNTED   96
#define IN_FLIGHT_MAX 256

/* The I/Os in flight, which complete in the order of submission because they share a bus. */
struct flights {
	const struct drive_kind *kind;
	const struct tune_point *point;
	struct {
		uint64_t due_ns;
		unsigned worker;
	} ring[IN_FLIGHT_MAX];
	uint64_t bus_free_ns, submitted, completed;
};

/* The service time is that of struct sim_drive with moving_ns. */
static void submit(struct flights *flights, uint64_t now, unsigned worker)
{
	const struct drive_kind *kind = flights->kind;
	bool write = kind->objective == TUNE_WRITE ||
		     (kind->objective == TUNE_SWAP && flights->submitted % 2);
	size_t at = flights->submitted % IN_FLIGHT_MAX;
	unsigned in_service = (unsigned)(flights->submitted - flights->completed) + 1;

	assert_true(in_service <= IN_FLIGHT_MAX);
	flights->bus_free_ns = max_u64(flights->bus_free_ns, now) +
			       kind->moving_ns(write, flights->point->block_size, in_service);
	flights->ring[at].due_ns = flights->bus_free_ns + kind->latency_ns;
	flights->ring[at].worker = worker;
	flights->submitted++;
}

/* Completes n I/Os. Each is followed by its worker's next one: at once, or, without overlap_events,
 * when all of that worker have completed. Returns the time of the last completion. */
static uint64_t complete(struct flights *flights, uint64_t n)
{
	const struct tune_point *point = flights->point;
	unsigned in_flight[IN_FLIGHT_MAX] = {0};
	uint64_t now = 0;

	for (uint64_t i = flights->completed; i < flights->submitted; i++)
		in_flight[flights->ring[i % IN_FLIGHT_MAX].worker]++;
	while (n--) {
		size_t at = flights->completed++ % IN_FLIGHT_MAX;
		unsigned worker = flights->ring[at].worker;

		now = flights->ring[at].due_ns;
		in_flight[worker]--;
		if (!point->overlap_events && in_flight[worker])
			continue;
		do
			submit(flights, now, worker);
		while (++in_flight[worker] < point->queue_depth);
	}
	return now;
}

/* Computes the workload's result; with threads it would depend on the scheduler. */
static void know(const struct drive_kind *kind, struct drive_point *known)
{
	const struct tune_point *point = &known->point;
	struct flights flights = {.kind = kind, .point = point};
	uint64_t in_flight = (uint64_t)point->queue_depth * point->thread_count;
	uint64_t n = (IOS_COUNTED / in_flight + 8) * in_flight;
	uint64_t from, to;

	for (uint64_t i = 0; i < in_flight; i++)
		submit(&flights, 0, (unsigned)(i % point->thread_count));
	from = complete(&flights, in_flight);
	to = complete(&flights, n);
	known->sample.bytes_per_s = (double)(n * point->block_size) * 1e9 / (double)(to - from);
	known->beside_ns = from + flights.ring[(flights.submitted - 1) % IN_FLIGHT_MAX].due_ns - to;
	/* By Little's law. */
	known->sample.p50_ns = (uint64_t)(1e9 * (double)(in_flight * point->block_size) /
					  known->sample.bytes_per_s);
	known->sample.p99_ns = known->sample.p50_ns * 3 / 2;
}

struct drive *drive_open(const struct drive_kind *kind, const struct tune_space *space)
{
	struct drive *drive = calloc(1, sizeof(*drive));
	unsigned workers = space->nthread_counts, depths = space->nqueue_depths;
	unsigned all = 4 * space->nblock_sizes * depths * workers;

	MUST(drive && space->nioengines == 1);
	drive->kind = kind;
	drive->space = *space;
	drive->points = calloc(all, sizeof(*drive->points));
	MUST(drive->points);
	for (unsigned i = 0; i < all; i++) {
		struct drive_point *known = &drive->points[drive->n];
		struct tune_point *point = &known->point;

		*point = (struct tune_point){
			.ioengine = space->ioengines[0],
			.block_size = space->block_sizes[i / 4 / workers / depths],
			.queue_depth = space->queue_depths[i / 4 / workers % depths],
			.thread_count = space->thread_counts[i / 4 % workers],
			.single_submit = i % 4 / 2,
			.overlap_events = i % 2 == 0,
		};
		if (!tune_space_has(space, point) ||
		    (point->single_submit && !space->single_submits) ||
		    (!point->overlap_events && !space->overlap_events))
			continue;
		know(kind, known);
		drive->n++;
	}
	return drive;
}

void drive_close(struct drive *drive)
{
	free(drive->points);
	free(drive);
}

static const struct drive_point *known_of(const struct drive *drive, const struct tune_point *point)
{
	for (size_t i = 0; i < drive->n; i++)
		if (tune_point_same(&drive->points[i].point, point))
			return &drive->points[i];
	MUST(!"a point of the drive");
	return NULL;
}

/* Approximately normal: the sum of twelve uniform values. */
double drive_deviation(uint64_t *random)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += (double)random_below(random, 1000000) / 1e6;
	return sum;
}

/* ---- Stalls and drift ---- */

#define STALL_GAP_NS (12000 * MS) /* maximum time between two stalls */
#define STALL_NS     (600 * MS)	  /* maximum length of a stall; the minimum is a sixth */
#define DRIFT_NS     (90000 * MS)
#define DRIFT_SHARE  (1.0 / 3)

static void next_stall(struct drive *drive)
{
	uint64_t *random = &drive->temper_random;

	drive->stall_from_ns = drive->stall_to_ns + random_below(random, STALL_GAP_NS);
	drive->stall_to_ns = drive->stall_from_ns + STALL_NS / 6 +
			     random_below(random, STALL_NS * 5 / 6);
	drive->stalled = 0.4 + (double)random_below(random, 300) / 1e3;
}

/* Returns the share of the rate that is left in the next `for_ns`. */
static double left_of_rate(struct drive *drive, uint64_t for_ns)
{
	uint64_t from = drive->now_ns, to = from + for_ns;
	double lost = 0;

	if (drive->temper == DRIVE_STEADY)
		return 1;
	/* Falls by a third and rises again, with a phase from the seed. */
	if (drive->temper == DRIVE_DRIFTS) {
		double phase = (double)((from + drive->drift_from_ns) % DRIFT_NS) /
			       (double)DRIFT_NS;

		return 1 - DRIFT_SHARE * (1 - fabs(2 * phase - 1));
	}
	while (drive->stall_to_ns <= from)
		next_stall(drive);
	while (drive->stall_from_ns < to) {
		uint64_t begin = max_u64(drive->stall_from_ns, from);
		uint64_t end = drive->stall_to_ns < to ? drive->stall_to_ns : to;

		lost += (1 - drive->stalled) * (double)(end - begin);
		if (drive->stall_to_ns > to)
			break;
		next_stall(drive);
	}
	return 1 - lost / (double)for_ns;
}

static int measure(void *arg, const struct tune_point *point, enum tune_objective objective,
		   uint64_t for_ns, struct tune_sample *sample, struct nvs_error *error)
{
	struct drive *drive = arg;
	const struct drive_point *known = known_of(drive, point);
	uint64_t writes;

	if (++drive->measured == drive->fails) {
		*error = (struct nvs_error){
			.size = sizeof(*error), .code = drive->error, .text = "the drive says no"};
		return drive->error;
	}
	*sample = known->sample;
	sample->ns = for_ns;
	writes = (uint64_t)((double)(for_ns + known->beside_ns) * 1e-9 * sample->bytes_per_s *
			    (objective == TUNE_READ   ? 0
			     : objective == TUNE_SWAP ? 0.5
						      : 1));
	if (drive->written + writes > drive->writes_max) {
		drive->written = drive->writes_max;
		return -EDQUOT;
	}
	/* The rate stays positive, whatever the noise. */
	sample->bytes_per_s *= fmax(1 + drive->noise * drive_deviation(&drive->random), 0.01);
	sample->bytes_per_s *= left_of_rate(drive, for_ns);
	if (drive->noise > 0)
		sample->p99_ns =
			(uint64_t)((double)sample->p99_ns *
				   fmax(1 + drive->noise * drive_deviation(&drive->random), 0.1));
	if (drive->disturb)
		sample->bytes_per_s *= drive->disturb(drive->disturb_arg, point);
	drive->now_ns += for_ns + known->beside_ns;
	drive->written += writes;
	drive->longest_ns = max_u64(drive->longest_ns, for_ns + known->beside_ns);
	return 0;
}

static uint64_t now_ns(void *arg)
{
	return ((struct drive *)arg)->now_ns;
}

struct tune_meter drive_meter(struct drive *drive, double noise, uint64_t seed)
{
	drive->noise = noise;
	drive->random = seed;
	drive->now_ns = drive->longest_ns = drive->measured = drive->written = 0;
	drive->writes_max = UINT64_MAX;
	drive->temper_random = ~seed;
	drive->drift_from_ns = random_below(&drive->temper_random, DRIFT_NS);
	drive->stall_from_ns = drive->stall_to_ns = 0;
	return (struct tune_meter){
		.measure = measure, .now_ns = now_ns, .written = &drive->written, .arg = drive};
}

double drive_rate(const struct drive *drive, const struct tune_point *point)
{
	return known_of(drive, point)->sample.bytes_per_s;
}

double drive_best_rate(const struct drive *drive, uint64_t p99_max)
{
	double best = 0;

	for (size_t i = 0; i < drive->n; i++)
		if (!p99_max || drive->points[i].sample.p99_ns <= p99_max)
			best = fmax(best, drive->points[i].sample.bytes_per_s);
	return best;
}

struct tune_point drive_answer(const struct drive *drive, double tolerance, uint64_t p99_max)
{
	double least = (1 - tolerance) * drive_best_rate(drive, p99_max);
	const struct drive_point *answer = NULL;

	for (size_t i = 0; i < drive->n; i++) {
		const struct drive_point *known = &drive->points[i];

		if ((!p99_max || known->sample.p99_ns <= p99_max) &&
		    known->sample.bytes_per_s >= least &&
		    (!answer || tune_prefers(&drive->space, &known->point, &answer->point)))
			answer = known;
	}
	assert_non_null(answer);
	return answer->point;
}

uint64_t drive_sweep_ns(const struct drive *drive, uint64_t round_ns)
{
	uint64_t ns = 0;

	for (size_t i = 0; i < drive->n; i++)
		ns += 3 * (round_ns + drive->points[i].beside_ns);
	return ns;
}
