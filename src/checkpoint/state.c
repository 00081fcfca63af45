/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of an optimizer in .safetensors and .pt files: each part of each group is a tensor,
 * whole, and the number of steps another one, or in a file of torch.save a number. State moves by
 * whole tiles, each read or written once with all its parts. The transfers of a tile between pool
 * and files are its flight; those of several tiles are in flight while the next ones are read from
 * the store, or those before are written to it.
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
#include "checkpoint/torch/torch.h"
#include "checkpoint/torch/zip.h"
#include "optim/optimizer.h"

#define STEPS_MAX	((UINT64_C(1) << 53) - 1) /* of nvs_optimizer_set_step */
#define STEP_NAME	"step"
#define GROUP_ROOM	(4 * NVS_NAME_MAX + 1) /* bytes of the name of a group */
#define GROUP_PART_ROOM (GROUP_ROOM + 16)      /* and of a tensor */

#define IOS_MAX 16u /* of one flight; groups are rarely so small that a tile has more */

/* A transfer between the pool and one file. */
struct state_io {
	size_t tensor; /* a part of a group: an index of `entries` */
	float *data;
	uint64_t numel;
	uint64_t at; /* of the first in the tensor */
	struct nvs_request *requests[WRITES_MAX];
	size_t n;
};

struct flight {
	struct state_io ios[IOS_MAX];
	size_t n;
	int rc; /* the first error; no other I/O of the tile is begun */
};

/* The groups of an optimizer, each with its parts as tensors of a checkpoint. */
struct groups {
	struct nvs_optimizer *optimizer;
	struct nvs_aio *aio;
	const struct rule *rule;
	size_t n;
	uint64_t step;
	/* Of the parts of group 0, of group 1 and so on: */
	const struct entry **entries; /* importing, NULL: the part becomes 0 */
	uint32_t *sums;		      /* CRC-32 of the data that has moved */
	struct writing *writing;      /* NULL: importing */
	struct reading *reading;      /* NULL: exporting */

	struct flight *flights;
	struct nvs_error error; /* the first of a transfer */
	int failed;		/* it is set; atomic */
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
	unsigned nparts;
	int rc = nvs_optimizer_get_info(optimizer, &info, error);

	if (rc)
		return rc;
	groups->n = info.ngroups;
	groups->optimizer = optimizer;
	groups->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	groups->step = info.step;
	groups->rule = rule_at(info.rule);
	nparts = groups->rule->nparts;
	groups->entries = calloc(groups->n * nparts, sizeof(*groups->entries));
	groups->sums = calloc(groups->n * nparts, sizeof(*groups->sums));
	groups->flights = calloc(optimizer_flights(optimizer), sizeof(*groups->flights));
	groups->error.size = sizeof(groups->error);
	return groups->entries && groups->sums && groups->flights ? 0 : no_memory(error);
}

static void groups_end(struct groups *groups)
{
	free(groups->entries);
	free(groups->sums);
	free(groups->flights);
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
	size_t part = i % nparts;

	part_of_group(groups, i / nparts, part ? part_name(groups->rule->parts[part]) : "fp32",
		      name, numel);
}

/* ---- Moving tiles ---- */

/*
 * Adds what the elements of an I/O contribute to the CRC-32 of their tensor, in any order and by
 * any thread.
 */
static void add_sum(const struct groups *groups, const struct state_io *io)
{
	uint64_t behind = groups->entries[io->tensor]->numel - io->at - io->numel;
	uint32_t crc = zip_crc32(io->data, io->numel * sizeof(float));

	__atomic_fetch_xor(&groups->sums[io->tensor], zip_crc32_before(crc, behind * sizeof(float)),
			   __ATOMIC_RELAXED);
}

static int submit_io(const struct groups *groups, struct state_io *io, struct nvs_error *error)
{
	const struct entry *entry = groups->entries[io->tensor];
	uint64_t nbytes = io->numel * sizeof(float), at = io->at * sizeof(float);
	int rc;

	assert(!entry || at + nbytes <= entry->nbytes);
	if (!entry) {
		memset(io->data, 0, nbytes);
		return 0;
	}
	if (groups->reading) {
		rc = nvs_aio_pread(groups->aio, groups->reading->files[entry->file], io->data,
				   nbytes, entry->offset + at, io->requests, error);
		io->n = !rc;
		return rc;
	}
	rc = sink_write(&groups->writing->drafts[entry->file].sink, groups->aio, io->data, nbytes,
			entry->offset + at, io->requests, &io->n, error);
	/* While it is being written. */
	if (!rc && groups->writing->torch.crcs)
		add_sum(groups, io);
	return rc;
}

/* The first thread that fails stores the error; the others leave it. */
static int record_failure(struct groups *groups, const struct nvs_error *error)
{
	int none = 0;

	if (__atomic_compare_exchange_n(&groups->failed, &none, 1, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		error_copy(&groups->error, error);
	return error->code;
}

static void finish_flight(struct groups *groups, struct flight *flight)
{
	assert(flight->n <= IOS_MAX);
	for (size_t i = 0; i < flight->n; i++) {
		struct state_io *io = &flight->ios[i];
		const struct entry *entry = groups->entries[io->tensor];
		struct nvs_error error = {.size = sizeof(error)};
		int rc = requests_finish(groups->aio, io->requests, io->n, &error);

		if (rc && !flight->rc)
			flight->rc = record_failure(groups, &error);
		else if (!rc && groups->reading && entry && entry->has_crc)
			add_sum(groups, io);
	}
	flight->n = 0;
}

static void begin_run(void *arg, const struct nvs_state_run *run, unsigned number)
{
	float *const arrays[] = {[NVS_MASTER] = run->master,
				 [NVS_EXP_AVG] = run->exp_avg,
				 [NVS_EXP_AVG_SQ] = run->exp_avg_sq,
				 [NVS_MOMENTUM_BUFFER] = run->momentum_buffer,
				 [NVS_SUM] = run->sum};
	struct groups *groups = arg;
	struct flight *flight = &groups->flights[number];
	const unsigned nparts = groups->rule->nparts;

	for (unsigned part = 0; part < nparts; part++) {
		struct nvs_error error = {.size = sizeof(error)};
		struct state_io *io;

		if (flight->n == IOS_MAX)
			finish_flight(groups, flight);
		if (flight->rc)
			return;
		io = &flight->ios[flight->n++];
		*io = (struct state_io){.tensor = run->group * nparts + part,
					.data = arrays[groups->rule->parts[part]],
					.numel = run->numel,
					.at = run->offset};
		if (submit_io(groups, io, &error))
			flight->rc = record_failure(groups, &error);
	}
}

static int complete_run(void *arg, unsigned number)
{
	struct groups *groups = arg;
	struct flight *flight = &groups->flights[number];
	int rc;

	finish_flight(groups, flight);
	rc = flight->rc;
	flight->rc = 0;
	return rc;
}

/* -EBUSY: the optimizer has taken a step meanwhile. */
static int move_groups(struct groups *groups, struct nvs_error *error)
{
	const struct tile_mover mover = {
		.begin = begin_run, .complete = complete_run, .arg = groups};
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc = groups->reading ? optimizer_import_tiles(groups->optimizer, &mover, error)
				 : optimizer_export_tiles(groups->optimizer, &mover, error);

	/* The error of a transfer says more than that of the pass that it ended. */
	if (rc && groups->failed)
		error_copy(error, &groups->error);
	for (size_t i = 0; !rc && groups->reading && i < groups->n * groups->rule->nparts; i++) {
		const struct entry *entry = groups->entries[i];

		if (entry && entry->has_crc && groups->sums[i] != entry->crc)
			rc = entry_damaged(groups->reading->checkpoint, entry, error);
	}
	if (!rc)
		rc = nvs_optimizer_get_info(groups->optimizer, &info, error);
	if (rc || info.step == groups->step)
		return rc;
	return error_set(error, -EBUSY,
			 "the optimizer took a step meanwhile: export and import its state between "
			 "steps");
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
		rc = move_groups(groups, error);
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
	const struct nvs_checkpoint *checkpoint = groups->reading->checkpoint;
	const struct entry *entry;
	struct nvs_request *request;
	uint8_t bytes[sizeof(*step)];
	int rc, fd;

	if (checkpoint->of_torch) {
		fd = reading_open(checkpoint, 0, error);
		if (fd < 0)
			return fd;
		rc = torch_read_count(fd, checkpoint->paths[0], STEP_NAME, step, error);
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
		rc = move_groups(&groups, error);
	if (!rc && !names)
		rc = nvs_optimizer_set_step(optimizer, step, error);
	if (reading.checkpoint)
		reading_end(&reading);
	groups_end(&groups);
	return rc;
}
