/* SPDX-License-Identifier: Apache-2.0 */
/* The errors of transfers that failed or are overdue: each names a path and an offset. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#include "aio/internal.h"

int transfer_error(const struct transfer *transfer, const char *subject, struct nvs_error *error)
{
	bool write = transfer->direction == NVS_WRITE;
	const char *why = nvs_strerror(transfer->status), *advice = "";
	struct place place;

	if (!transfer->file)
		return error_cause(
			error, NVS_CAUSE_IO, NULL,
			error_about(error, transfer->status, subject, 0, transfer->error_offset,
				    "%s at offset %" PRIu64 " of a file closed since failed: %s",
				    write ? "writing" : "reading", transfer->error_offset,
				    nvs_strerror(transfer->status)));
	place = file_place(transfer->file, transfer->error_offset);
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
	return error_cause(error, NVS_CAUSE_IO, place.member->path,
			   error_about(error, transfer->status, subject, 0, place.offset,
				       "%s%s%s %s at offset %" PRIu64 " failed: %s%s",
				       subject ? subject : "", subject ? ": " : "",
				       write ? "writing" : "reading", place.member->path,
				       place.offset, why, advice));
}

int aio_overdue_error(const struct transfer *transfer, const char *subject, struct nvs_error *error)
{
	const struct nvs_aio *aio = transfer->file->aio;
	struct place place = file_place(transfer->file, transfer->state.hangs_at), there = place;
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
