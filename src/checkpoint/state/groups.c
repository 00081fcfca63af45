/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an optimizer in .safetensors and .pt files: each part of each group is a tensor,
 * whole, and the number of steps another one, or in a file of torch.save a number.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/text.h"
#include "base/threads/cancel.h"
#include "checkpoint/state/state_move.h"
#include "checkpoint/torch/torch.h"

#define STEP_NAME	"step"
#define GROUP_ROOM	(4 * NVS_NAME_MAX + 1) /* bytes of the name of a group */
#define GROUP_PART_ROOM (GROUP_ROOM + 16)      /* and of a tensor */

/* The groups of an optimizer, each with its parts as tensors of a checkpoint. */
struct groups {
	struct nvs_optimizer *optimizer;
	struct nvs_aio *aio;
	const struct rule *rule;
	struct fragment *fragments; /* each a whole group */
	size_t n;
	uint64_t step;
	/* Of the parts of group 0, of group 1 and so on: */
	const struct entry **entries; /* importing, NULL: the part becomes 0 */
	uint32_t *sums;		      /* CRC-32 of the data that has moved */
	struct writing *writing;      /* NULL: importing */
	struct reading *reading;      /* NULL: exporting */
};

static int no_memory(struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "no memory for the names of tensors");
}

/* Call groups_end in any case. */
static int groups_begin(struct groups *groups, struct nvs_optimizer *optimizer,
			struct nvs_error *error)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};
	unsigned nparts;
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (rc)
		return rc;
	groups->optimizer = optimizer;
	groups->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	groups->step = info.step;
	groups->rule = rule_at(info.rule);
	nparts = groups->rule->nparts;
	groups->entries = calloc(info.ngroups * nparts, sizeof(*groups->entries));
	groups->sums = calloc(info.ngroups * nparts, sizeof(*groups->sums));
	groups->fragments = calloc(info.ngroups, sizeof(*groups->fragments));
	if (!groups->entries || !groups->sums || !groups->fragments)
		return no_memory(error);
	for (; groups->n < info.ngroups; groups->n++) {
		rc = nvs_optimizer_get_group_info(optimizer, groups->n, &group, NULL);
		assert(!rc);
		groups->fragments[groups->n] = (struct fragment){.group = groups->n,
								 .numel = group.numel};
	}
	return 0;
}

static void groups_end(struct groups *groups)
{
	free(groups->entries);
	free(groups->sums);
	free(groups->fragments);
}

/* The name of a part of a group, and its elements. The store of an earlier version, open read-only,
 * may have groups whose names are not UTF-8: a file gets those with \xHH. */
static void part_of_group(const struct groups *groups, size_t i, const char *part,
			  char name[GROUP_PART_ROOM], uint64_t *numel)
{
	struct nvs_group_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_group_info(groups->optimizer, i, &info, NULL);
	char visible[GROUP_ROOM];
	const char *group;

	assert(!rc && i < groups->n);
	if (text_is_utf8(info.name))
		group = info.name;
	else
		group = visible_text(info.name, strlen(info.name), visible, sizeof(visible));
	snprintf(name, GROUP_PART_ROOM, "%s.%s", group, part);
	*numel = info.numel;
}

static void groups_name(const struct groups *groups, size_t i, char name[GROUP_PART_ROOM],
			uint64_t *numel)
{
	unsigned nparts = groups->rule->nparts;

	part_of_group(groups, i / nparts, state_part_name(groups->rule, (unsigned)(i % nparts)),
		      name, numel);
}

static void add_sum(const struct groups *groups, const struct state_io *io)
{
	state_io_sum(io, groups->fragments[io->fragment].numel,
		     &groups->sums[io->fragment * groups->rule->nparts + io->part]);
}

static int submit_io(struct state_move *move, struct state_io *io, struct nvs_error *error)
{
	const struct groups *groups = move->arg;
	const struct entry *entry = groups->entries[io->fragment * groups->rule->nparts + io->part];
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
	const struct entry *entry = groups->entries[io->fragment * groups->rule->nparts + io->part];

	if (entry && entry->has_crc)
		add_sum(groups, io);
}

static int groups_move(struct groups *groups, struct nvs_error *error)
{
	struct state_move move = {.fragments = groups->fragments,
				  .nfragments = groups->n,
				  .importing = groups->reading != NULL,
				  .submit = submit_io,
				  .landed = groups->reading ? landed : NULL,
				  .arg = groups};

	return state_move_run(&move, groups->optimizer, error);
}

/* ---- Export ---- */

static int plan_tensor(struct nvs_checkpoint *plan, const char *name, enum nvs_dtype dtype,
		       uint64_t numel)
{
	int rc = entry_make(&plan->entries[plan->n], name, dtype, numel, NULL, 0);

	if (!rc)
		plan->nbytes += plan->entries[plan->n++].nbytes;
	return rc;
}

/* The number of steps comes last, as a tensor; a file of torch.save has it as a number. */
static int plan(const struct groups *groups, bool with_step, size_t nstorages,
		struct nvs_error *error)
{
	struct nvs_checkpoint *plan = &groups->writing->plan;
	char name[GROUP_PART_ROOM];
	size_t n = groups->n * groups->rule->nparts;
	uint64_t numel;
	int rc = 0;

	plan->entries = calloc(n + nstorages + 1, sizeof(struct entry));
	if (!plan->entries)
		rc = -ENOMEM;
	for (size_t i = 0; i < n && !rc; i++) {
		groups_name(groups, i, name, &numel);
		rc = plan_tensor(plan, name, NVS_F32, numel);
	}
	if (!rc && with_step)
		rc = plan_tensor(plan, STEP_NAME, NVS_U64, 1);
	return rc ? no_memory(error) : 0;
}

static int export_groups(struct groups *groups, struct nvs_error *error)
{
	struct writing *writing = groups->writing;
	const struct entry *last = &writing->plan.entries[writing->plan.n - 1];
	size_t n = groups->n * groups->rule->nparts;
	uint8_t step[sizeof(groups->step)];
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		groups->entries[i] = &writing->plan.entries[i];
	if (!writing->torch.crcs) {
		assert(last->dtype == NVS_U64 && last->numel == 1);
		put_u64(step, groups->step);
		rc = sink_write_now(&writing->drafts[last->file].sink, groups->aio, step,
				    sizeof(step), last->offset, error);
	}
	if (!rc)
		rc = groups_move(groups, error);
	if (!rc)
		rc = check_step_since(groups->optimizer, groups->step, error);
	if (!rc && writing->torch.crcs)
		memcpy(writing->torch.crcs, groups->sums, n * sizeof(*groups->sums));
	return rc ? rc : writing_commit(writing, error);
}

int nvs_checkpoint_export_optimizer(struct nvs_optimizer *optimizer, const char *path,
				    const struct nvs_checkpoint_options *options,
				    struct nvs_error *error)
{
	HOLD_CANCEL;
	struct writing writing = {0};
	struct groups groups = {.writing = &writing};
	struct torch_count step = {.name = STEP_NAME};
	struct nvs_checkpoint_options chosen;
	int rc;

	if (!path)
		return error_set(error, -EINVAL, "path is NULL");
	rc = options_in(&chosen, options, error);
	if (rc)
		return rc;
	rc = groups_begin(&groups, optimizer, error);
	step.value = groups.step;
	if (!rc)
		rc = plan(&groups, !writes_torch(path, &chosen), chosen.nstorages, error);
	if (!rc)
		rc = writing_begin(&writing, groups.aio, path, &chosen, &step, error);
	if (!rc)
		rc = export_groups(&groups, error);
	writing_end(&writing);
	groups_end(&groups);
	return rc;
}

/* ---- Import ---- */

/* `names` NULL: the tensor is called as the group and the part. */
static int find_part(struct groups *groups, size_t i, const char *const *names,
		     struct nvs_error *error)
{
	char own[GROUP_PART_ROOM];
	const char *name = names ? names[i] : own;
	const struct entry *entry;
	uint64_t numel;

	groups_name(groups, i, own, &numel);
	if (!name)
		return 0;
	entry = checkpoint_find(groups->reading->checkpoint, name);
	groups->entries[i] = entry;
	if (!entry)
		return checkpoint_lacks(groups->reading->checkpoint, name, error);
	if (entry->dtype != NVS_F32 || entry->numel != numel)
		return error_about(error, -ESTALE, name, 0, 0,
				   "%s: tensor %s has %llu elements of %s, the optimizer's group "
				   "%llu of F32",
				   groups->reading->checkpoint->paths[entry->file], name,
				   (unsigned long long)entry->numel, nvs_dtype_name(entry->dtype),
				   (unsigned long long)numel);
	return 0;
}

/* A checkpoint of another rule, which may have a state of this one's name. */
static int refuse_other_states(const struct groups *groups, struct nvs_error *error)
{
	const struct nvs_checkpoint *checkpoint = groups->reading->checkpoint;
	char name[GROUP_PART_ROOM];
	uint64_t numel;

	for (size_t i = 0; i < groups->n; i++) {
		for (unsigned k = NVS_EXP_AVG; k <= NVS_SUM; k++) {
			enum nvs_optimizer_part part = (enum nvs_optimizer_part)k;
			const struct entry *entry;

			if (rule_part(groups->rule, part) >= 0)
				continue;
			part_of_group(groups, i, part_name(part), name, &numel);
			entry = checkpoint_find(checkpoint, name);
			if (entry)
				return error_about(error, -ESTALE, name, 0, 0,
						   "%s has %s, and %s has no such state: it is a "
						   "checkpoint of another rule. Pass the names of "
						   "the tensors to import what both have",
						   checkpoint->paths[entry->file], name,
						   groups->rule->name);
		}
	}
	return 0;
}

/* The number of steps. A file of torch.save has no numbers in its list of tensors. */
static int read_step(const struct groups *groups, uint64_t *step, struct nvs_error *error)
{
	static const char *const keys[] = {STEP_NAME, NULL};
	const struct nvs_checkpoint *checkpoint = groups->reading->checkpoint;
	const struct entry *entry;
	struct nvs_request *request;
	uint8_t bytes[sizeof(*step)];
	int rc, fd;

	if (checkpoint->of_torch) {
		fd = reading_open(checkpoint, 0, error);
		if (fd < 0)
			return fd;
		rc = torch_read_count(fd, checkpoint->paths[0], keys, step, error);
		close(fd);
	} else {
		entry = checkpoint_find(checkpoint, STEP_NAME);
		if (!entry)
			return checkpoint_lacks(checkpoint, STEP_NAME, error);
		if (entry->dtype != NVS_U64 || entry->numel != 1)
			return error_about(error, -ESTALE, STEP_NAME, 0, 0,
					   "%s: tensor " STEP_NAME " must be one element of U64",
					   checkpoint->paths[entry->file]);
		rc = nvs_aio_pread(groups->aio, groups->reading->files[entry->file], bytes,
				   sizeof(bytes), entry->offset, &request, error);
		if (!rc)
			rc = requests_finish(groups->aio, &request, 1, error);
		if (!rc)
			*step = get_u64(bytes);
	}
	if (!rc && *step > STEPS_MAX)
		rc = error_about(error, -ERANGE, STEP_NAME, 0, 0,
				 "the checkpoint counts %llu steps; allowed are up to 2^53 - 1",
				 (unsigned long long)*step);
	return rc;
}

int nvs_checkpoint_import_optimizer(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint *checkpoint,
				    const char *const *names, struct nvs_error *error)
{
	HOLD_CANCEL;
	struct reading reading = {0};
	struct groups groups = {.reading = &reading};
	uint64_t step = 0;
	int rc;

	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	rc = groups_begin(&groups, optimizer, error);
	if (!rc)
		rc = reading_begin(&reading, groups.aio, checkpoint, error);
	for (size_t i = 0; !rc && i < groups.n * groups.rule->nparts; i++)
		rc = find_part(&groups, i, names, error);
	if (!rc && !names)
		rc = refuse_other_states(&groups, error);
	if (!rc && !names)
		rc = read_step(&groups, &step, error);
	for (size_t i = 0; !rc && i < groups.n * groups.rule->nparts; i++)
		if (groups.entries[i])
			rc = reading_check(&reading, groups.entries[i], error);
	if (!rc)
		rc = groups_move(&groups, error);
	for (size_t i = 0; !rc && i < groups.n * groups.rule->nparts; i++) {
		const struct entry *entry = groups.entries[i];

		if (entry && entry->has_crc && groups.sums[i] != entry->crc)
			rc = error_about(error, -EBADMSG, entry->name, 0, entry->offset,
					 "%s: tensor %s: its bytes do not have the checksum that "
					 "the file states",
					 checkpoint->paths[entry->file], entry->name);
	}
	if (!rc)
		rc = check_step_since(optimizer, groups.step, error);
	if (!rc && !names)
		rc = nvs_optimizer_set_step(optimizer, step, error);
	if (reading.checkpoint)
		reading_end(&reading);
	groups_end(&groups);
	return rc;
}
