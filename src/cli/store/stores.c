/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stores that the options choose, one after the other, and their names.
 */
#include <errno.h>

#include "cli/store/store.h"

/* The chosen place from number *index on; -ENODATA: there is none. */
static int next_chosen(const struct store_job *job, unsigned *index, struct nvs_store_place *place,
		       struct nvs_error *error)
{
	int rc;

	do {
		*place = (struct nvs_store_place){
			.size = sizeof(*place), .paths = job->paths, .npaths = job->npaths};
		rc = nvs_store_find(job->paths[job->look_at], (*index)++, place, error);
	} while (!rc &&
		 !((job->any_rank || place->rank == job->rank) &&
		   (job->kind == KIND_ANY || place->optimizer == (job->kind == KIND_OPTIMIZER))));
	return rc;
}

int store_each(struct store_job *job, store_fn *fn)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store_place place;
	unsigned index = 0, n = 0;
	int status = 0, rc;

	while (!(rc = next_chosen(job, &index, &place, &error))) {
		int mine = fn(job, &place);

		status = mine > status ? mine : status;
		n++;
	}
	if (rc == -ENODATA && n)
		return status;
	if (rc != -ENODATA)
		say("%s", error.text);
	else
		say("%s holds no store%s", job->paths[0],
		    job->any_rank && job->kind == KIND_ANY ? "" : " of that rank and kind");
	return STATUS_FAILED;
}

unsigned store_count(const struct store_job *job)
{
	struct nvs_store_place place;
	unsigned index = 0, n = 0;

	while (!next_chosen(job, &index, &place, NULL))
		n++;
	return n;
}

bool store_choice_open(const struct store_job *job)
{
	if (store_count(job) < 2)
		return false;
	say("%s holds several stores: choose one by --rank and --kind (nvswap store list)",
	    job->paths[job->look_at]);
	return true;
}

struct nvs_store *store_look(const struct nvs_store_place *place, unsigned flags,
			     struct nvs_store_info *info)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_store *store;

	*info = (struct nvs_store_info){.size = sizeof(*info)};
	if (nvs_store_open(place, flags, &store, &error)) {
		say("%s", error.text);
		return NULL;
	}
	nvs_store_get_info(store, info);
	return store;
}

void store_print_name(FILE *out, const char *path, uint32_t rank, bool optimizer)
{
	print_visible(out, path);
	fprintf(out, "  rank %u%s", rank, optimizer ? ", optimizer" : "");
}

void store_open_json(struct json_writer *json, const struct nvs_store_place *place)
{
	json_open_object(json, NULL);
	json_text(json, "path", place->paths[0]);
	json_count(json, "rank", place->rank);
	json_text(json, "kind", place->optimizer ? "optimizer" : "parameters");
}
