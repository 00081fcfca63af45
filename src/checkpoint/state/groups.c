/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of an optimizer's groups as tensors of a checkpoint, and their way from or to it. */
#include "checkpoint/state/groups.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

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

int groups_begin(struct groups *groups, struct nvs_optimizer *optimizer, struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (rc)
		return rc;
	groups->optimizer = optimizer;
	groups->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	groups->step = info.step;
	groups->entries = calloc(info.ngroups * PARTS, sizeof(*groups->entries));
	groups->sums = calloc(info.ngroups * PARTS, sizeof(*groups->sums));
	groups->fragments = calloc(info.ngroups, sizeof(*groups->fragments));
	if (!groups->entries || !groups->sums || !groups->fragments)
		return error_set(error, -ENOMEM, "no memory for the names of tensors");
	for (; groups->n < info.ngroups; groups->n++) {
		rc = nvs_optimizer_get_group_info(optimizer, groups->n, &group, NULL);
		assert(!rc);
		groups->fragments[groups->n] = (struct fragment){.group = groups->n,
								 .numel = group.numel};
	}
	return 0;
}

void groups_end(struct groups *groups)
{
	free(groups->entries);
	free(groups->sums);
	free(groups->fragments);
	groups->entries = NULL;
	groups->sums = NULL;
	groups->fragments = NULL;
}

void groups_name(const struct groups *groups, size_t i, char name[GROUP_PART_ROOM], uint64_t *numel)
{
	struct nvs_group_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_group_info(groups->optimizer, i / PARTS, &info, NULL);

	assert(!rc && i < groups->n * PARTS);
	snprintf(name, GROUP_PART_ROOM, "%s.%s", info.name, part_names[i % PARTS]);
	*numel = info.numel;
}

static void add_sum(const struct groups *groups, const struct state_io *io)
{
	state_io_sum(io, groups->fragments[io->fragment].numel,
		     &groups->sums[io->fragment * PARTS + io->part]);
}

/* An I/O writes to, or reads from, its place in a file. */
static int submit_io(struct state_move *move, struct state_io *io, struct nvs_error *error)
{
	const struct groups *groups = move->arg;
	const struct entry *entry = groups->entries[io->fragment * PARTS + io->part];
	uint64_t nbytes = io->numel * sizeof(float), at = io->at * sizeof(float);
	int rc;

	assert(!entry || at + nbytes <= entry->nbytes);
	if (groups->reading) {
		if (!entry) {
			memset(io->data, 0, nbytes);
			return 0;
		}
		rc = nvs_aio_pread(move->aio, groups->reading->files[entry->file], io->data, nbytes,
				   entry->offset + at, io->requests, error);
		io->n = !rc;
		return rc;
	}
	rc = sink_write(&groups->writing->drafts[entry->file].sink, move->aio, io->data, nbytes,
			entry->offset + at, io->requests, &io->n, error);
	/* While it is being written. */
	if (!rc && groups->writing->torch.crcs)
		add_sum(groups, io);
	return rc;
}

static void landed(struct state_move *move, const struct state_io *io)
{
	const struct groups *groups = move->arg;

	const struct entry *entry = groups->entries[io->fragment * PARTS + io->part];

	if (entry && entry->has_crc)
		add_sum(groups, io);
}

int groups_move(struct groups *groups, struct nvs_error *error)
{
	struct state_move move = {.fragments = groups->fragments,
				  .nfragments = groups->n,
				  .importing = groups->reading != NULL,
				  .submit = submit_io,
				  .landed = groups->reading ? landed : NULL,
				  .arg = groups};

	assert(!groups->reading != !groups->writing);
	return state_move_run(&move, groups->optimizer, error);
}
