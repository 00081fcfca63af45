/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values are hashes of seed, generation, group, part and element, with the bits masked that would
 * make them negative, infinite or not a number.
 */
#include "cli/modes/checkpoint/seeded_state.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "cli/modes/model/random.h"

#define PARTS	    3u
#define FINITE_BITS 0x3fffffffu

static const char *const part_names[PARTS] = {"fp32", "exp_avg", "exp_avg_sq"};

struct state {
	uint64_t seed, generation;
	pthread_mutex_t lock; /* of the fields below */
	uint64_t differences;
	struct nvs_error *first;
};

static uint32_t salt_of(const struct state *state, size_t group, unsigned part)
{
	uint32_t salt = mix((uint32_t)state->seed) ^ mix((uint32_t)(state->seed >> 32) + 1);

	salt = mix(salt + (uint32_t)state->generation);
	return mix(mix(salt + (uint32_t)group) + part);
}

static inline uint32_t value_at(uint32_t salt, uint64_t index)
{
	return mix((uint32_t)index * 0x9e3779b1u + salt) & FINITE_BITS;
}

static int fill_run(void *arg, const struct nvs_state_run *run)
{
	float *const parts[PARTS] = {run->master, run->exp_avg, run->exp_avg_sq};

	for (unsigned part = 0; part < PARTS; part++) {
		uint32_t salt = salt_of(arg, run->group, part);

		for (uint64_t i = 0; i < run->numel; i++) {
			uint32_t bits = value_at(salt, run->offset + i);

			memcpy(&parts[part][i], &bits, sizeof(bits));
		}
	}
	return 0;
}

static void note_differences(struct state *state, const struct nvs_state_run *run, unsigned part,
			     uint64_t n, uint64_t first)
{
	pthread_mutex_lock(&state->lock);
	if (!state->differences)
		error_set(state->first, -EBADMSG,
			  "%s of group %zu differs at element %" PRIu64 " from what was saved",
			  part_names[part], run->group, run->offset + first);
	state->differences += n;
	pthread_mutex_unlock(&state->lock);
}

static int compare_run(void *arg, const struct nvs_state_run *run)
{
	const float *const parts[PARTS] = {run->master, run->exp_avg, run->exp_avg_sq};
	struct state *state = arg;

	for (unsigned part = 0; part < PARTS; part++) {
		uint32_t salt = salt_of(state, run->group, part);
		uint64_t n = 0, first = 0;

		for (uint64_t i = 0; i < run->numel; i++) {
			uint32_t bits;

			memcpy(&bits, &parts[part][i], sizeof(bits));
			if (bits == value_at(salt, run->offset + i))
				continue;
			first = n++ ? first : i;
		}
		if (n)
			note_differences(state, run, part, n, first);
	}
	return 0;
}

int state_fill(struct nvs_optimizer *optimizer, uint64_t seed, uint64_t generation,
	       struct nvs_error *error)
{
	struct state state = {.seed = seed, .generation = generation};

	return nvs_optimizer_import(optimizer, fill_run, &state, error);
}

int state_compare(struct nvs_optimizer *optimizer, uint64_t seed, uint64_t generation,
		  uint64_t *differences, struct nvs_error *error)
{
	struct nvs_error first = {.size = sizeof(first)};
	struct state state = {.seed = seed,
			      .generation = generation,
			      .lock = PTHREAD_MUTEX_INITIALIZER,
			      .first = &first};
	int rc = nvs_optimizer_export(optimizer, compare_run, &state, error);

	*differences = state.differences;
	if (rc || !state.differences)
		return rc;
	error_copy(error, &first);
	return -EBADMSG;
}
