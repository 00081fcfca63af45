/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store list`: a line for each store below each path. It reads labels and manifests alone.
 */
#include <inttypes.h>

#include "base/error.h"
#include "cli/store/store.h"

static void print_line(FILE *out, const struct nvs_store_info *info)
{
	char rank[48], made[48], size[32];

	fprintf(out, "  %-20s  %s", store_rank_text(info, rank), store_state_name(info->state));
	if (info->nmembers > 1)
		fprintf(out, ", path %u of %u", info->member + 1, info->nmembers);
	if (info->commit)
		fprintf(out, ", commit %" PRIu64 " of %s, %" PRIu64 " tensor%s of %s", info->commit,
			store_time_text(info->commit_time, made), info->tensors,
			plural(info->tensors), size_text(info->tensor_bytes, size));
	if (info->damaged_copies)
		fprintf(out, ", %u of %u copies of the metadata damaged", info->damaged_copies,
			info->copies);
	if (info->in_use)
		fprintf(out, ", in use");
	if (info->owner) {
		fprintf(out, " by process %d (", info->owner);
		print_visible(out, info->owner_name);
		fputs(")", out);
	}
	if (info->state == NVS_STORE_DAMAGED) {
		fputs(": ", out);
		print_visible(out, info->problem);
	}
	fputs("\n", out);
}

/* One path of several is not damage. */
static int list_one(struct store_job *job, const struct nvs_store_place *place)
{
	struct nvs_store_info info;
	struct nvs_store *store = store_look(place, 0, &info);

	if (!store)
		return STATUS_FAILED;
	if (job->json) {
		json_open_object(job->json, NULL);
		store_info_json(job->json, place, &info);
		json_close_object(job->json);
	} else {
		print_line(job->out, &info);
	}
	nvs_store_close(store);
	return info.state == NVS_STORE_DAMAGED || info.damaged_copies ? STATUS_FAILED : 0;
}

int store_list(struct store_job *job)
{
	int status = 0;

	for (unsigned i = 0; i < job->npaths; i++) {
		struct store_job one = *job;
		int mine;

		one.paths = &job->paths[i];
		one.npaths = 1;
		if (!job->json) {
			print_visible(job->out, job->paths[i]);
			fputs("\n", job->out);
			fflush(job->out);
		}
		mine = store_each(&one, list_one);
		status = mine > status ? mine : status;
	}
	return status;
}
