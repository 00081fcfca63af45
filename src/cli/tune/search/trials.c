/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trials and their rounds: the length of a round, its expected cost, and the state of knowledge
 * after the rounds so far.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/tune/search/state.h"

/*
 * A round should measure this many I/Os and this many fillings of the queues; on a slow drive it is
 * extended for that, up to a factor.
 */
#define ROUND_IOS     100.0
#define QUEUES_FULL   2.0
#define ROUND_STRETCH 4.0
/* With a write limit, this many rounds must fit into it, and none is shorter than this. */
#define ROUNDS_OF_WRITES 600.0
#define ROUND_NS_LEAST	 20e6
/* The share of a round's rate left by a stall, which the only round of a point may have had. */
#define STALLED 0.4
/* Lower limit of a round's noise, however well rounds agree. */
#define NOISE_LEAST 0.001

static int grow(struct search *search)
{
	static const struct nvs_error no_memory = {.size = sizeof(no_memory),
						   .code = -ENOMEM,
						   .text = "out of memory for the measurements"};
	size_t room = search->room ? 2 * search->room : 8;
	struct tune_trial *trials = realloc(search->trials, room * sizeof(*trials));
	struct rounds *rounds;

	if (trials)
		search->trials = trials;
	rounds = realloc(search->rounds, room * sizeof(*rounds));
	if (rounds)
		search->rounds = rounds;
	if (trials && rounds) {
		search->room = room;
		return 0;
	}
	if (search->error)
		*search->error = no_memory;
	return -ENOMEM;
}

long search_trial(struct search *search, const struct tune_point *point)
{
	/* A copy, because the point can be part of a trial, which moves. */
	struct tune_trial trial = {.point = *point, .objective = search->rules->objective};

	for (size_t i = 0; i < search->n; i++)
		if (space_same(&search->trials[i].point, point))
			return (long)i;
	if (search->n == search->room && grow(search))
		return -ENOMEM;
	search->trials[search->n] = trial;
	search->rounds[search->n] = (struct rounds){0};
	return (long)search->n++;
}

struct cost search_spent(const struct search *search)
{
	const struct tune_meter *meter = search->meter;

	return (struct cost){meter->now_ns(meter->arg) - search->started.ns,
			     meter->written(meter->arg) - search->started.written};
}

double search_share_spent(const struct search *search)
{
	struct cost spent = search_spent(search);

	return fmin(fmax((double)spent.ns / (double)search->rules->budget_ns,
			 (double)spent.written / (double)search->rules->writes_max),
		    1);
}

/* ---- A round ---- */

static double share_written(const struct search *search)
{
	enum tune_objective objective = search->rules->objective;

	return objective == TUNE_READ ? 0 : objective == TUNE_SWAP ? 0.5 : 1;
}

static double bytes_in_flight(const struct search *search, size_t trial)
{
	const struct tune_point *point = &search->trials[trial].point;

	return (double)point->block_size * point->queue_depth * point->thread_count;
}

/* The trial, or the fastest if it has no round, or itself before the first round of all. */
static size_t example_of(const struct search *search, size_t trial)
{
	size_t example = trial;

	for (size_t i = 0; i < search->n && !search->rounds[trial].n; i++)
		if (search->rounds[i].rate.mean > search->rounds[example].rate.mean)
			example = i;
	return example;
}

static uint64_t length_of(const struct search *search, size_t trial)
{
	const struct tune_point *point = &search->trials[trial].point;
	double rate = search->rounds[example_of(search, trial)].rate.mean;
	double length = (double)search->round_ns;
	double wanted = ROUND_IOS + QUEUES_FULL * point->queue_depth * point->thread_count;
	double ios = rate / point->block_size * 1e-9 * length;
	double writes = rate * 1e-9 * share_written(search);

	if (search->rounds[trial].n && ios < wanted)
		length *= ios * ROUND_STRETCH > wanted ? wanted / ios : ROUND_STRETCH;
	if (search->rules->writes_max != UINT64_MAX && length > ROUND_NS_LEAST) {
		double most = (double)search->rules->writes_max / ROUNDS_OF_WRITES;

		if (rate <= 0 || length * writes > most)
			length = fmax(ROUND_NS_LEAST, writes > 0 ? most / writes : 0);
	}
	return (uint64_t)length;
}

/*
 * A point without rounds is expected to be as fast as the fastest, or limited by the same latency,
 * whichever is quicker, and to fill its queues twice.
 */
static struct cost cost_of(const struct search *search, size_t trial, uint64_t for_ns)
{
	const struct tune_trial *this = &search->trials[trial];
	size_t example = example_of(search, trial);
	double queued = bytes_in_flight(search, trial);
	double rate = search->rounds[example].rate.mean, ns = 1.5 * (double)for_ns;

	if (this->rounds)
		return (struct cost){this->spent_ns / this->rounds, this->written / this->rounds};
	if (rate <= 0)
		return (struct cost){(uint64_t)ns, 0};
	return (struct cost){
		.ns = (uint64_t)(ns + 2e9 * fmin(queued, bytes_in_flight(search, example)) / rate),
		.written = (uint64_t)(share_written(search) * (2 * queued + rate * 1e-9 * ns)),
	};
}

static bool has_room(struct search *search, size_t trial, uint64_t for_ns)
{
	struct cost spent = search_spent(search), cost = cost_of(search, trial, for_ns);
	bool late = spent.ns + cost.ns >= search->until.ns;
	bool full = spent.written + cost.written > search->until.written && cost.written;

	search->out_of_time |= late;
	search->out_of_writes |= full;
	return !late && !full;
}

/* The round's deviation from those before it, whose mean is uncertain itself. */
static void note_noise(struct search *search, const struct rounds *before, double bytes_per_s)
{
	if (before->n && before->rate.mean > 0)
		noise_add(&search->noise, (bytes_per_s / before->rate.mean - 1) *
						  sqrt(before->n / (before->n + 1.0)));
}

int search_round(struct search *search, size_t trial, double *bytes_per_s)
{
	uint64_t for_ns = length_of(search, trial);
	struct tune_trial *this = &search->trials[trial];
	struct cost before = search_spent(search), after;
	struct tune_sample sample;
	int rc;

	if (!has_room(search, trial, for_ns))
		return -ETIME;
	rc = search->meter->measure(search->meter->arg, &this->point, this->objective, for_ns,
				    &sample, search->error);
	after = search_spent(search);
	this->spent_ns += after.ns - before.ns;
	this->written += after.written - before.written;
	search->out_of_writes |= rc == -EDQUOT;
	if (rc)
		return rc == -EDQUOT ? -ETIME : rc;
	note_noise(search, &search->rounds[trial], sample.bytes_per_s);
	rounds_add(&search->rounds[trial], &sample);
	this->rounds++;
	if (bytes_per_s)
		*bytes_per_s = sample.bytes_per_s;
	if (search->meter->progress)
		search->meter->progress(search->meter->arg, search->phase,
					search_share_spent(search));
	return 0;
}

/* Fisher-Yates, with the numbers of SplitMix64. */
void search_shuffle(struct search *search, size_t *numbers, size_t n)
{
	for (size_t i = n; i > 1; i--) {
		uint64_t mixed;
		size_t other, number;

		search->random += UINT64_C(0x9e3779b97f4a7c15);
		mixed = (search->random ^ (search->random >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
		other = (size_t)((mixed ^ (mixed >> 31)) % i);
		number = numbers[i - 1];
		numbers[i - 1] = numbers[other];
		numbers[other] = number;
	}
}

/* ---- Knowledge after the rounds ---- */

double search_doubt(const struct search *search, size_t trial)
{
	const struct rounds *rounds = &search->rounds[trial];
	double least = NOISE_LEAST / sqrt(rounds->n), mean = rounds->rate.mean, doubt;

	if (mean <= 0)
		return least;
	doubt = half_width(&rounds->rate, search->noise.variance * mean * mean,
			   search->noise.freedom) /
		mean;
	return fmax(doubt, least);
}

double search_low(const struct search *search, size_t trial)
{
	return search->rounds[trial].rate.mean / (1 + search_doubt(search, trial));
}

double search_high(const struct search *search, size_t trial)
{
	double high = search->rounds[trial].rate.mean * (1 + search_doubt(search, trial));

	return search->rounds[trial].n > 1 ? high : high / STALLED;
}

uint64_t search_p99(const struct search *search, size_t trial)
{
	return (uint64_t)median(search->rounds[trial].p99_ns, search->rounds[trial].n);
}

bool search_allowed(const struct search *search, size_t trial)
{
	uint64_t most = search->rules->latency_max_ns;

	return !most || search_p99(search, trial) <= most;
}

/* The interval is that of the ratio of both means, with the noise of both. */
bool search_keeps_up(const struct search *search, size_t trial, size_t best)
{
	double doubt = hypot(search_doubt(search, trial), search_doubt(search, best));

	return search->rounds[trial].n && search_allowed(search, trial) &&
	       search->rounds[trial].rate.mean * (1 + doubt) >=
		       search->rounds[best].rate.mean * (1 - search->rules->tolerance);
}

size_t search_best(const struct search *search)
{
	size_t best = search->n, lowest = search->n;

	for (size_t i = 0; i < search->n; i++) {
		if (!search->rounds[i].n)
			continue;
		if (lowest == search->n || search_p99(search, i) < search_p99(search, lowest))
			lowest = i;
		if (search_allowed(search, i) &&
		    (best == search->n || search_low(search, i) > search_low(search, best)))
			best = i;
	}
	return best < search->n ? best : lowest;
}
