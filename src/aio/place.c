/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a file lie, and what holds of a file while it is open, and of an aio's counts
 * and tables under the lock.
 */
#include "aio/internal.h"

struct place file_place(const struct nvs_file *file, uint64_t offset)
{
	assert(offset <= INT64_MAX);
	if (file->nmembers == 1)
		return (struct place){.member = &file->members[0],
				      .offset = file->members[0].base + offset,
				      .nbytes = UINT64_MAX};

	if (!file->stripe) {
		const struct file_member *members = file->members;
		unsigned low = 0, high = file->nmembers;

		/* The last member that begins at the offset or before. */
		while (high - low > 1) {
			unsigned middle = low + (high - low) / 2;

			if (members[middle].first <= offset)
				low = middle;
			else
				high = middle;
		}
		assert(members[low].first <= offset);
		return (struct place){.member = &members[low],
				      .offset = members[low].base + offset - members[low].first,
				      .nbytes = high < file->nmembers ? members[high].first - offset
								      : UINT64_MAX};
	}

	uint64_t stripe = offset / file->stripe;
	uint64_t within = offset % file->stripe;
	const struct file_member *member = &file->members[stripe % file->nmembers];

	return (struct place){.member = member,
			      .offset = member->base + stripe / file->nmembers * file->stripe +
					within,
			      .nbytes = file->stripe - within};
}

unsigned file_member_at(const struct nvs_file *file, uint64_t offset)
{
	return (unsigned)(file_place(file, offset).member - file->members);
}

uint64_t file_written(const struct nvs_file *file, unsigned member)
{
	assert(member < file->nmembers);
	return __atomic_load_n(&file->written[member], __ATOMIC_RELAXED);
}

void file_check(const struct nvs_file *file)
{
	if (!STATE_CHECKS)
		return;
	assert(file->nmembers && (file->nmembers == 1 || file->stripe || !file->writable));
	assert(file->offset_align && file->mem_align);
	assert(file->write_unit && file->write_unit % file->offset_align == 0);
	assert(file->direct || (file->offset_align == 1 && file->mem_align == 1));
	assert(!file->units || file->write_unit == file->offset_align);
	assert(file->members[0].path && file->members[0].fd >= 0);
	assert(!file->direct || file->members[0].direct_fd >= 0);
}

void workers_check(const struct nvs_aio *aio)
{
	if (!STATE_CHECKS)
		return;
	assert(aio->nworkers <= aio->config.thread_count && aio->running <= aio->nworkers);
	assert(aio->idle <= aio->nworkers);
	assert(aio->ops && aio->options.depth == aio->config.queue_depth);
	assert(aio->nregions <= ENGINE_BUFFERS && aio->buffers_status <= 0);
	assert(aio->node >= -1 && aio->restrained <= UINT32_MAX / 2);
}

void region_check(const struct nvs_aio *aio, const struct region *region)
{
	if (!STATE_CHECKS)
		return;
	assert(!region->data == !region->nbytes && !region->data == !region->generation);
	assert(region->nbytes <= REGION_BYTES && region->generation <= aio->generation);
	assert(region->registered <= (region->only ? 1 : aio->nworkers) && region->status <= 0);
}
