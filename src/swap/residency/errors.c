/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Describes the failures of a tensor's transfers, and why a call can't have its contents.
 */
#include <inttypes.h>

#include "swap/residency/internal.h"

int moving_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 enum nvs_direction direction, int status, uint64_t offset, struct nvs_error *error)
{
	const struct transfer transfer = {.file = store_file(engine->store),
					  .direction = direction,
					  .status = status,
					  .error_offset = offset};

	/* Only writes are refused. */
	assert(offset != NOWHERE || direction == NVS_WRITE);
	if (offset == NOWHERE)
		return error_named(error, status, tensor->rest->name,
				   " was not written to %s: a commit failed and could not be "
				   "taken back, and contents that it may name are not overwritten "
				   "before another one succeeds; commit again",
				   store_path(engine->store));
	if (status == -EBADMSG && engine->of_files) {
		struct nvs_error plain = {.size = sizeof(plain)};
		const char *path = store_file_path(engine->store, offset);

		transfer_error(&transfer, tensor->rest->name, &plain);
		return error_cause(
			error, NVS_CAUSE_IO, path,
			error_about(error, status, tensor->rest->name, 0, plain.offset,
				    "%s: the bytes of %s at offset %" PRIu64
				    " are not those of its checksum: the drive changed them, or a "
				    "program has written to the file; if that was meant to be, "
				    "\"nvswap store checksum\" writes the checksums anew",
				    tensor->rest->name, path, plain.offset));
	}
	return transfer_error(&transfer, tensor->rest->name, error);
}

int tensor_error(const struct nvs_engine *engine, const struct nvs_tensor *tensor,
		 struct nvs_error *error)
{
	return moving_error(engine, tensor, tensor->status_direction, tensor->status,
			    tensor->rest->error_offset, error);
}

int report_failed_write(const struct nvs_engine *engine, struct nvs_tensor *tensor,
			struct nvs_error *error)
{
	int status = tensor->unreported;

	if (!status || in_flight(tensor))
		return 0;
	tensor->unreported = 0;
	return moving_error(engine, tensor, NVS_WRITE, status, tensor->rest->unreported_at, error);
}

int check_readable(const struct nvs_tensor *tensor, struct nvs_error *error)
{
	if (tensor_state(tensor) != NVS_EMPTY)
		return 0;
	return error_named(
		error, -ENODATA, tensor->rest->name, " has no contents to read: %s",
		tensor->engine->read_only
			? "it had none when the store, which is open read-only, was last "
			  "committed"
			: "it has never been written, or its last write failed; pin it "
			  "with nvs_tensor_pin and write it first");
}
