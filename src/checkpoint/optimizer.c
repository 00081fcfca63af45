/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports and imports the state of an optimizer by whole tiles: each is read or written once, with
 * all three parts. The transfers of several tiles between pool and files are in flight while the
 * next ones are read from the store, or those before are written to it.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/struct_size.h"
#include "checkpoint/checkpoint.h"
#include "optim/optimizer.h"

#define PARTS		3u
#define FLIGHT_REQUESTS 48u /* of one tile; groups are rarely so small that it has more */
#define STEPS_MAX	((UINT64_C(1) << 53) - 1)

static const char *const part_names[PARTS] = {"fp32", "exp_avg", "exp_avg_sq"};

/* The transfers of a tile. */
struct flight {
	struct nvs_request *requests[FLIGHT_REQUESTS];
	size_t n;
	int rc; /* the first error; no other run of the tile is begun */
};

struct bulk {
	struct writing *writing; /* NULL: importing */
	struct reading *reading; /* NULL: exporting */
	struct nvs_aio *aio;
	const struct entry **entries; /* the parts of group 0, of group 1 and so on */
	struct nvs_error *error;
	int failed; /* the error is set; atomic */
	struct flight *flights;
};

/* The first thread that fails has the error to itself. */
static int fail(struct bulk *bulk, const struct nvs_error *error)
{
	int none = 0;

	if (__atomic_compare_exchange_n(&bulk->failed, &none, 1, false, __ATOMIC_ACQ_REL,
					__ATOMIC_RELAXED))
		error_copy(bulk->error, error);
	return error->code;
}

/* Waits for the transfers of a flight. */
static void finish(struct bulk *bulk, struct flight *flight)
{
	struct nvs_error error = {.size = sizeof(error)};
	size_t n = flight->n;
	int rc;

	flight->n = 0;
	rc = requests_finish(bulk->aio, flight->requests, n, &error);
	if (rc && !flight->rc)
		flight->rc = fail(bulk, &error);
}

/* The part of a run is written to, or read from, its place in a file. */
static int submit(struct bulk *bulk, struct flight *flight, const struct nvs_state_run *run,
		  const struct entry *entry, float *part, struct nvs_error *error)
{
	uint64_t nbytes = run->numel * sizeof(float), at = run->offset * sizeof(float);
	struct nvs_request **requests = flight->requests + flight->n;
	size_t n;
	int rc;

	assert(flight->n + WRITES_MAX <= FLIGHT_REQUESTS && at + nbytes <= entry->nbytes);
	if (bulk->writing) {
		rc = draft_write(&bulk->writing->drafts[entry->file], bulk->aio, part, nbytes,
				 entry->offset + at, requests, &n, error);
	} else {
		rc = nvs_aio_pread(bulk->aio, bulk->reading->files[entry->file], part, nbytes,
				   entry->offset + at, requests, error);
		n = !rc;
	}
	flight->n += n;
	return rc;
}

static void begin_run(void *arg, const struct nvs_state_run *run, unsigned number)
{
	struct nvs_error error = {.size = sizeof(error)};
	float *const parts[PARTS] = {run->master, run->exp_avg, run->exp_avg_sq};
	struct bulk *bulk = arg;
	struct flight *flight = &bulk->flights[number];

	for (size_t i = 0; i < PARTS && !flight->rc; i++) {
		if (flight->n + WRITES_MAX > FLIGHT_REQUESTS)
			finish(bulk, flight);
		if (!flight->rc && submit(bulk, flight, run, bulk->entries[run->group * PARTS + i],
					  parts[i], &error))
			flight->rc = fail(bulk, &error);
	}
}

static int complete(void *arg, unsigned number)
{
	struct bulk *bulk = arg;
	struct flight *flight = &bulk->flights[number];
	int rc;

	finish(bulk, flight);
	rc = flight->rc;
	flight->rc = 0;
	return rc;
}

static int name_of(struct nvs_optimizer *optimizer, size_t i, char name[NVS_NAME_MAX + 16],
		   uint64_t *numel)
{
	struct nvs_group_info info = {.size = sizeof(info)};
	int rc = nvs_optimizer_get_group_info(optimizer, i / PARTS, &info, NULL);

	if (rc)
		return rc;
	snprintf(name, NVS_NAME_MAX + 16, "%s.%s", info.name, part_names[i % PARTS]);
	*numel = info.numel;
	return 0;
}

static int plan(struct writing *writing, struct nvs_optimizer *optimizer, size_t n,
		struct nvs_error *error)
{
	struct nvs_checkpoint *checkpoint = &writing->plan;
	char name[NVS_NAME_MAX + 16];
	uint64_t numel;
	int rc = 0;

	assert(checkpoint->entries);
	for (size_t i = 0; i <= n && !rc; i++) {
		struct entry *entry = &checkpoint->entries[i];

		if (i == n)
			rc = entry_make(entry, "step", NVS_U64, 1, NULL, 0);
		else
			rc = name_of(optimizer, i, name, &numel) ||
			     entry_make(entry, name, NVS_F32, numel, NULL, 0);
		if (rc)
			return error_set(error, -ENOMEM, "no memory for the names of tensors");
		checkpoint->nbytes += entry->nbytes;
		checkpoint->n++;
	}
	return 0;
}

static int export(struct nvs_optimizer *optimizer, uint64_t step, struct bulk *bulk,
		  struct nvs_error *error)
{
	const struct tile_mover mover = {.begin = begin_run, .complete = complete, .arg = bulk};
	struct writing *writing = bulk->writing;
	size_t n = writing->plan.n - 1;
	const struct entry *entry = &writing->plan.entries[n];
	uint8_t bytes[sizeof(step)];
	int rc;

	assert(bulk->entries);
	for (size_t i = 0; i < n; i++)
		bulk->entries[i] = &writing->plan.entries[i];
	put_u64(bytes, step);
	rc = draft_write_now(&writing->drafts[entry->file], bulk->aio, bytes, sizeof(bytes),
			     entry->offset, error);
	if (!rc)
		rc = optimizer_export_tiles(optimizer, &mover, error);
	return rc ? rc : writing_commit(writing, error);
}

static void end(struct bulk *bulk)
{
	free(bulk->entries);
	free(bulk->flights);
	bulk->entries = NULL;
	bulk->flights = NULL;
}

static int begin(struct nvs_optimizer *optimizer, struct bulk *bulk,
		 struct nvs_optimizer_info *info, struct nvs_error *error)
{
	int rc;

	info->size = sizeof(*info);
	rc = nvs_optimizer_get_info(optimizer, info, error);
	if (rc)
		return rc;
	bulk->aio = nvs_engine_aio(nvs_optimizer_engine(optimizer));
	bulk->entries = calloc(info->ngroups * PARTS, sizeof(*bulk->entries));
	bulk->flights = calloc(optimizer_flights(optimizer), sizeof(*bulk->flights));
	if (bulk->entries && bulk->flights)
		return 0;
	end(bulk);
	return error_set(error, -ENOMEM, "no memory for the names of tensors");
}

/* The error of a transfer says more than that of the pass that it ended. */
static int ended(const struct bulk *bulk, int rc, const struct nvs_error *own,
		 struct nvs_error *error)
{
	if (rc && bulk->failed)
		error_copy(error, own);
	return rc;
}

int nvs_checkpoint_export_optimizer(struct nvs_optimizer *optimizer, const char *path,
				    const struct nvs_checkpoint_options *options,
				    struct nvs_error *error)
{
	struct nvs_error own = {.size = sizeof(own)};
	struct writing writing = {0};
	struct bulk bulk = {.writing = &writing, .error = &own};
	struct nvs_checkpoint_options chosen;
	struct nvs_optimizer_info info;
	int rc = path ? options_in(&chosen, options, error)
		      : error_set(error, -EINVAL, "path is NULL");

	if (!rc)
		rc = begin(optimizer, &bulk, &info, error);
	if (rc)
		return rc;
	writing.plan.entries = calloc(info.ngroups * PARTS + 1, sizeof(struct entry));
	if (!writing.plan.entries)
		rc = error_set(error, -ENOMEM, "no memory for the names of tensors");
	if (!rc)
		rc = plan(&writing, optimizer, info.ngroups * PARTS, error);
	if (!rc)
		rc = writing_begin(&writing, bulk.aio, path, &chosen, error);
	if (!rc)
		rc = export(optimizer, info.step, &bulk, error);
	writing_end(&writing);
	end(&bulk);
	return ended(&bulk, rc, &own, error);
}

static int find_part(struct bulk *bulk, struct nvs_optimizer *optimizer, size_t i,
		     struct nvs_error *error)
{
	char name[NVS_NAME_MAX + 16];
	const struct entry *entry;
	uint64_t numel;
	int rc = name_of(optimizer, i, name, &numel);

	assert(bulk->entries);
	if (rc)
		return error_set(error, rc, "no such group");
	entry = checkpoint_find(bulk->reading->checkpoint, name);
	bulk->entries[i] = entry;
	if (!entry)
		return error_about(error, -ENOENT, name, 0, 0, "the checkpoint has no tensor %s",
				   name);
	if (entry->dtype != NVS_F32 || entry->numel != numel)
		return error_about(error, -ESTALE, name, 0, 0,
				   "%s: the checkpoint has %llu elements of %s, the optimizer has "
				   "%llu of F32",
				   name, (unsigned long long)entry->numel,
				   nvs_dtype_name(entry->dtype), (unsigned long long)numel);
	return 0;
}

static int read_step(struct bulk *bulk, uint64_t *step, struct nvs_error *error)
{
	const struct entry *entry = checkpoint_find(bulk->reading->checkpoint, "step");
	struct nvs_request *request;
	uint8_t bytes[sizeof(*step)];
	int rc;

	if (!entry)
		return error_about(error, -ENOENT, "step", 0, 0,
				   "the checkpoint has no tensor step");
	if (entry->dtype != NVS_U64 || entry->numel != 1)
		return error_about(error, -ESTALE, "step", 0, 0,
				   "the tensor step must be one element of U64");
	rc = nvs_aio_pread(bulk->aio, bulk->reading->files[entry->file], bytes, sizeof(bytes),
			   entry->offset, &request, error);
	if (!rc)
		rc = requests_finish(bulk->aio, &request, 1, error);
	if (rc)
		return rc;
	*step = get_u64(bytes);
	if (*step > STEPS_MAX)
		return error_about(error, -ERANGE, "step", 0, 0,
				   "the checkpoint counts %llu steps; allowed are up to 2^53 - 1",
				   (unsigned long long)*step);
	return 0;
}

static int import(struct nvs_optimizer *optimizer, size_t n, struct bulk *bulk,
		  const struct nvs_checkpoint *checkpoint, struct nvs_error *error)
{
	const struct tile_mover mover = {.begin = begin_run, .complete = complete, .arg = bulk};
	uint64_t step = 0;
	int rc = reading_begin(bulk->reading, bulk->aio, checkpoint, error);

	for (size_t i = 0; i < n && !rc; i++)
		rc = find_part(bulk, optimizer, i, error);
	if (!rc)
		rc = read_step(bulk, &step, error);
	if (!rc)
		rc = optimizer_import_tiles(optimizer, &mover, error);
	return rc ? rc : nvs_optimizer_set_step(optimizer, step, error);
}

int nvs_checkpoint_import_optimizer(struct nvs_optimizer *optimizer,
				    const struct nvs_checkpoint *checkpoint,
				    struct nvs_error *error)
{
	struct nvs_error own = {.size = sizeof(own)};
	struct reading reading = {0};
	struct bulk bulk = {.reading = &reading, .error = &own};
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc;

	if (!checkpoint)
		return error_set(error, -EINVAL, "checkpoint is NULL");
	if (checkpoint->of_torch)
		return error_set(
			error, -ENOTSUP,
			"%s: the state of an optimizer is imported from .safetensors files",
			checkpoint->paths[0]);
	rc = begin(optimizer, &bulk, &info, error);
	if (rc)
		return rc;
	rc = import(optimizer, info.ngroups * PARTS, &bulk, checkpoint, error);
	reading_end(&reading);
	end(&bulk);
	return ended(&bulk, rc, &own, error);
}
