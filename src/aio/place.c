/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a file lie, the errors of transfers that name such a place, and what holds of
 * a file while it is open, and of an aio's counts and tables under the lock.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "aio/internal.h"

struct location file_place(const struct nvs_file *file, uint64_t offset)
{
	assert(offset <= INT64_MAX);
	if (file->nmembers == 1)
		return (struct location){.member = &file->members[0],
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
		return (struct location){.member = &members[low],
					 .offset = members[low].base + offset - members[low].first,
					 .nbytes = high < file->nmembers
							   ? members[high].first - offset
							   : UINT64_MAX};
	}

	uint64_t stripe = offset / file->stripe;
	uint64_t within = offset % file->stripe;
	const struct file_member *member = &file->members[stripe % file->nmembers];

	return (struct location){.member = member,
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

/* ---- Errors: each names a path and an offset ---- */

int transfer_error(const struct transfer *transfer, const char *subject, struct nvs_error *error)
{
	bool write = transfer->direction == NVS_WRITE;
	const char *why = nvs_strerror(transfer->status), *advice = "";
	const char *path = "a file closed since";
	uint64_t offset = transfer->error_offset;

	if (transfer->file) {
		struct location place = file_place(transfer->file, offset);

		path = place.member->path;
		offset = place.offset;
	}
	if (transfer->status == -ENOSPC)
		advice = ": make room on the drive";
	else if (transfer->status == -EFBIG)
		advice = ": raise the limit (ulimit -f unlimited), unless the file system has one";
	else if (transfer->status == -EIO)
		advice = ": the drive failed, see the kernel's log";
	else if (transfer->status == -ESTALE)
		why = "it was replaced, written to or removed since it was opened: open it again";
	else if (transfer->status == -ECANCELED)
		advice = ": io_uring could not start a worker thread, see ulimit -u";
	return error_cause(error, NVS_CAUSE_IO, transfer->file ? path : NULL,
			   error_about(error, transfer->status, subject, 0, offset,
				       "%s%s%s %s at offset %" PRIu64 " failed: %s%s",
				       subject ? subject : "", subject ? ": " : "",
				       write ? "writing" : "reading", path, offset, why, advice));
}

int aio_overdue_error(const struct transfer *transfer, const char *subject, struct nvs_error *error)
{
	const struct nvs_aio *aio = transfer->file->aio;
	struct location place = file_place(transfer->file, transfer->state.hangs_at), there = place;
	bool waits = transfer->state.overdue && transfer->state.waits;
	const struct piece *oldest = NULL;
	char behind[PATH_MAX + 64] = "";

	/* Not even begun: the drive that hangs is that of the I/O that has been in flight for
	 * longest, perhaps another one. */
	for (unsigned i = 0; i < aio->nworkers && waits; i++)
		for (uint32_t j = 0; j < aio->config.queue_depth; j++) {
			const struct piece *piece = &aio->workers[i].pieces[j];

			if (piece->claimed_ns &&
			    (!oldest || piece->claimed_ns < oldest->claimed_ns))
				oldest = piece;
		}
	if (oldest)
		there = file_place(oldest->transfer->file, oldest->position);
	if (waits)
		snprintf(behind, sizeof(behind), ", the oldest of %s at offset %" PRIu64 ": that",
			 there.member->path, there.offset);
	return error_cause(
		error, NVS_CAUSE_IO, place.member->path,
		error_about(error, -ETIMEDOUT, subject, 0, place.offset,
			    "%s%s%s %s at offset %" PRIu64
			    " by %s has not %s within io_timeout_ms %u%s%s drive hangs, see the "
			    "kernel's log",
			    subject ? subject : "", subject ? ": " : "",
			    transfer->direction == NVS_WRITE ? "writing" : "reading",
			    place.member->path, place.offset, aio->ops->name,
			    waits ? "begun" : "completed", aio->config.io_timeout_ms,
			    waits ? ": it waits for I/Os that have not completed"
				  : " and is still in flight: the",
			    behind));
}

int aio_describe_overdue(struct nvs_aio *aio, const struct transfer *transfer, const char *subject,
			 struct nvs_error *error)
{
	int rc;

	pthread_mutex_lock(&aio->lock);
	rc = aio_overdue_error(transfer, subject, error);
	pthread_mutex_unlock(&aio->lock);
	return rc;
}

/* ---- Checks ---- */

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
