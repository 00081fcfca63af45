/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trials and their rounds: how long a round is, whether there is time for it, and what all of them
 * together say of the drive's noise.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tune_search.h"

/* A round is to have so many I/Os, and what the queues hold so many times; it is made longer where
 * the drive is slow, up to so many times. */
#define ROUND_IOS     100.0
#define QUEUES_FULL   2.0
#define ROUND_STRETCH 4.0
/* What a stall leaves of a round: it may be the only one there is. */
#define STALLED 0.4
/* No round is surer than this, however well they agree. */
#define NOISE_LEAST 0.001

int search_no_memory(const struct search *search)
{
	if (search->error) {
		*search->error = (struct nvs_error){.code = -ENOMEM};
		snprintf(search->error->text, sizeof(search->error->text),
			 "out of memory for what was measured");
	}
	return -ENOMEM;
}

static int grow(struct search *search)
{
	size_t room = search->room ? 2 * search->room : 8;
	struct tune_trial *trials = realloc(search->trials, room * sizeof(*trials));
	struct rounds *rounds;

	if (!trials)
		return -ENOMEM;
	search->trials = trials;
	rounds = realloc(search->rounds, room * sizeof(*rounds));
	if (!rounds)
		return -ENOMEM;
	search->rounds = rounds;
	search->room = room;
	return 0;
}

long search_trial(struct search *search, const struct tune_point *point,
		  enum tune_objective objective)
{
	/* It may be a trial's own, which moves. */
	struct tune_trial trial = {.point = *point, .objective = objective};

	for (size_t i = 0; i < search->n; i++)
		if (search->trials[i].objective == objective &&
		    space_same(&search->trials[i].point, point))
			return (long)i;
	if (search->n == search->room && grow(search))
		return search_no_memory(search);
	search->trials[search->n] = trial;
	search->rounds[search->n] = (struct rounds){0};
	return (long)search->n++;
}

uint64_t search_now(const struct search *search)
{
	return search->meter->now_ns(search->meter->arg);
}

/* ---- A round ---- */

static uint64_t length_of(const struct search *search, size_t trial)
{
	const struct tune_point *point = &search->trials[trial].point;
	double wanted = ROUND_IOS + QUEUES_FULL * point->queue_depth * point->thread_count;
	double ios = search->rounds[trial].rate.mean / point->block_size * 1e-9 *
		     (double)search->round_ns;
	double stretch = 1;

	if (search->rounds[trial].n && ios < wanted)
		stretch = ios * ROUND_STRETCH > wanted ? wanted / ios : ROUND_STRETCH;
	return (uint64_t)((double)search->round_ns * stretch);
}

/* What a round is likely to take as a whole; of a point that is not known, as if it were a quarter
 * as fast as the fastest. */
static uint64_t cost_of(const struct search *search, size_t trial, uint64_t for_ns)
{
	const struct tune_point *point = &search->trials[trial].point;
	double in_flight = (double)point->block_size * point->queue_depth * point->thread_count;
	double fastest = 0;

	if (search->rounds[trial].n)
		return search->trials[trial].spent_ns / search->rounds[trial].n;
	for (size_t i = 0; i < search->n; i++)
		if (search->rounds[i].rate.mean > fastest)
			fastest = search->rounds[i].rate.mean;
	return for_ns + for_ns / 2 + (fastest > 0 ? (uint64_t)(4e9 * in_flight / fastest) : 0);
}

/* How far it is from those before, whose mean is not sure itself. */
static void note_noise(struct search *search, const struct rounds *before, double bytes_per_s)
{
	if (before->n && before->rate.mean > 0)
		noise_add(&search->noise, (bytes_per_s / before->rate.mean - 1) *
						  sqrt(before->n / (before->n + 1.0)));
}

int search_round(struct search *search, size_t trial, double *bytes_per_s)
{
	uint64_t from = search_now(search), for_ns = length_of(search, trial), spent;
	struct tune_trial *this = &search->trials[trial];
	struct tune_sample sample;
	int rc;

	if (from + cost_of(search, trial, for_ns) > search->until_ns) {
		search->cut_short = true;
		return -ETIME;
	}
	rc = search->meter->measure(search->meter->arg, &this->point, this->objective, for_ns,
				    &sample, search->error);
	spent = search_now(search) - from;
	this->spent_ns += spent;
	if (rc)
		return rc;
	note_noise(search, &search->rounds[trial], sample.bytes_per_s);
	rounds_add(&search->rounds[trial], &sample);
	this->rounds++;
	if (bytes_per_s)
		*bytes_per_s = sample.bytes_per_s;
	if (search->meter->progress)
		search->meter->progress(search->meter->arg, search->phase,
					from + spent - search->started_ns,
					search->rules->budget_ns);
	return 0;
}

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

/* ---- What they say ---- */

double search_doubt(const struct search *search, size_t trial)
{
	const struct rounds *rounds = &search->rounds[trial];
	double least = NOISE_LEAST / sqrt(rounds->n), mean = rounds->rate.mean, doubt;

	if (mean <= 0)
		return least;
	doubt = half_width(&rounds->rate, search->noise.variance * mean * mean,
			   search->noise.freedom) /
		mean;
	return doubt > least ? doubt : least;
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

static bool counts(const struct search *search, size_t trial)
{
	return search->rounds[trial].n &&
	       search->trials[trial].objective == search->rules->objective;
}

size_t search_best(const struct search *search)
{
	size_t best = search->n;
	double most = -INFINITY;

	for (size_t i = 0; i < search->n; i++) {
		if (counts(search, i) && search_low(search, i) > most) {
			most = search_low(search, i);
			best = i;
		}
	}
	return best;
}

size_t search_preferred(const struct search *search, size_t best)
{
	double enough = search->rounds[best].rate.mean * (1 - search->rules->tolerance);
	size_t preferred = best;

	for (size_t i = 0; i < search->n; i++)
		if (counts(search, i) && search->rounds[i].rate.mean >= enough &&
		    space_prefers(search->space, &search->trials[i].point,
				  &search->trials[preferred].point))
			preferred = i;
	return preferred;
}

void search_estimate(struct search *search)
{
	for (size_t i = 0; i < search->n; i++) {
		struct tune_trial *trial = &search->trials[i];
		const struct rounds *rounds = &search->rounds[i];

		if (!rounds->n)
			continue;
		trial->mean = rounds->rate.mean;
		trial->half_width = rounds->rate.mean * search_doubt(search, i);
		trial->p50_ns = median(rounds->p50_ns, rounds->n);
		trial->p99_ns = median(rounds->p99_ns, rounds->n);
		trial->cpu_ms_per_gib = rounds->cpu_ms_per_gib;
	}
}
