/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves tiles of optimizer state between the pool and files. The transfers of a tile are its
 * flight; a tile with more fragments than a flight has room for waits for those it has begun.
 */
#include "checkpoint/state/state_move.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "checkpoint/torch/zip.h"

#define IOS_MAX 16u /* of one flight; groups are rarely so small that a tile has more */

struct flight {
	struct state_io ios[IOS_MAX];
	size_t n;
	int rc; /* the first error; no other I/O of the tile is begun */
};

int state_rule(const struct rule **rule, struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (!rc)
		*rule = rule_at(info.rule);
	return rc;
}

const char *state_part_name(const struct rule *rule, unsigned i)
{
	assert(i < rule->nparts);
	return i ? part_name(rule->parts[i]) : "fp32";
}

/* The first thread that fails stores the error; the others leave it. */
static int record_failure(struct state_move *move, const struct nvs_error *error)
{
	int none = 0;

	if (__atomic_compare_exchange_n(&move->failed, &none, 1, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		error_copy(&move->error, error);
	return error->code;
}

static void finish_flight(struct state_move *move, struct flight *flight)
{
	assert(flight->n <= IOS_MAX);
	for (size_t i = 0; i < flight->n; i++) {
		struct state_io *io = &flight->ios[i];
		struct nvs_error error = {.size = sizeof(error)};
		int rc = requests_finish(move->aio, io->requests, io->n, &error);

		if (rc && !flight->rc)
			flight->rc = record_failure(move, &error);
		else if (!rc && move->landed)
			move->landed(move, io);
		if (move->release)
			move->release(move, io);
	}
	flight->n = 0;
}

/* The first fragment that ends behind an element of a group. */
static size_t find_fragment(const struct state_move *move, size_t group, uint64_t offset)
{
	size_t low = 0, high = move->nfragments;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct fragment *fragment = &move->fragments[middle];

		if (fragment->group < group ||
		    (fragment->group == group && fragment->offset + fragment->numel <= offset))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Elements of a run that belong to no fragment: padding, which is 0 in all parts. */
static void clear_elements(const struct state_move *move, float *const parts[PARTS], uint64_t from,
			   uint64_t to)
{
	assert(from <= to);
	for (unsigned i = 0; i < PARTS && move->importing; i++)
		memset(parts[i] + from, 0, (to - from) * sizeof(float));
}

static void begin_run(void *arg, const struct nvs_state_run *run, unsigned number)
{
	float *const arrays[] = {[NVS_MASTER] = run->master,
				 [NVS_EXP_AVG] = run->exp_avg,
				 [NVS_EXP_AVG_SQ] = run->exp_avg_sq,
				 [NVS_MOMENTUM_BUFFER] = run->momentum_buffer,
				 [NVS_SUM] = run->sum};
	float *parts[PARTS];
	struct state_move *move = arg;
	const unsigned nparts = move->rule->nparts;
	uint64_t end = run->offset + run->numel, done = run->offset;
	size_t i = find_fragment(move, run->group, run->offset);

	assert(nparts <= PARTS);
	/* Those that the rule does not have are the master weights again. */
	for (unsigned part = 0; part < PARTS; part++)
		parts[part] = arrays[move->rule->parts[part]];
	for (; i < move->nfragments && move->fragments[i].group == run->group; i++) {
		const struct fragment *fragment = &move->fragments[i];
		uint64_t from = fragment->offset > done ? fragment->offset : done;
		uint64_t to = fragment->offset + fragment->numel;

		if (from >= end)
			break;
		to = to < end ? to : end;
		clear_elements(move, parts, done - run->offset, from - run->offset);
		for (unsigned part = 0; part < nparts; part++) {
			struct flight *flight = &move->flights[number];
			struct nvs_error error = {.size = sizeof(error)};
			struct state_io *own;

			if (flight->n == IOS_MAX)
				finish_flight(move, flight);
			if (!flight->rc) {
				own = &flight->ios[flight->n++];
				*own = (struct state_io){.fragment = i,
							 .part = part,
							 .data = parts[part] + (from - run->offset),
							 .numel = to - from,
							 .at = fragment->at +
							       (from - fragment->offset)};
				if (move->submit(move, own, &error))
					flight->rc = record_failure(move, &error);
			}
		}
		done = to;
	}
	clear_elements(move, parts, done - run->offset, run->numel);
}

static int complete_run(void *arg, unsigned number)
{
	struct state_move *move = arg;
	struct flight *flight = &move->flights[number];
	int rc;

	finish_flight(move, flight);
	rc = flight->rc;
	flight->rc = 0;
	return rc;
}

void state_io_sum(const struct state_io *io, uint64_t numel, uint32_t *sum)
{
	uint64_t behind = numel - io->at - io->numel;
	uint32_t crc = zip_crc32(io->data, io->numel * sizeof(float));

	assert(io->at + io->numel <= numel);
	__atomic_fetch_xor(sum, zip_crc32_before(crc, behind * sizeof(float)), __ATOMIC_RELAXED);
}

int check_step_since(struct nvs_optimizer *optimizer, uint64_t step, struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (rc || info.step == step)
		return rc;
	return error_set(error, -EBUSY,
			 "the optimizer took a step meanwhile: export and import its state between "
			 "steps");
}

int state_move_run(struct state_move *move, struct nvs_optimizer *optimizer,
		   struct nvs_error *error)
{
	const struct tile_mover mover = {.begin = begin_run, .complete = complete_run, .arg = move};
	int rc = state_rule(&move->rule, optimizer, error);

	if (rc)
		return rc;
	move->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	move->error = (struct nvs_error){.size = sizeof(move->error)};
	move->failed = 0;
	move->flights = calloc(optimizer_flights(optimizer), sizeof(*move->flights));
	if (!move->flights)
		return error_set(error, -ENOMEM, "no memory for transfers of optimizer state");
	rc = move->importing ? optimizer_import_tiles(optimizer, &mover, error)
			     : optimizer_export_tiles(optimizer, &mover, error);
	free(move->flights);
	move->flights = NULL;
	/* The error of a transfer says more than that of the pass that it ended. */
	if (rc && move->failed)
		error_copy(error, &move->error);
	return rc;
}
