/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of a checkpoint whose data is read. A storage of a file of torch.save is read for its
 * CRC-32 alone: of a tensor that is a part of its storage, the file has no other.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/numbers.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/torch/zip.h"

int reading_open(const struct nvs_checkpoint *checkpoint, size_t i, struct nvs_error *error)
{
	const char *path = checkpoint->paths[i];
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return error_set(error, -errno, "can't open %s: %s", path, nvs_strerror(-errno));
	rc = stamp_check(&checkpoint->stamps[i], fd, path, error);
	if (rc)
		close(fd);
	return rc ? rc : fd;
}

int reading_begin(struct reading *reading, struct nvs_aio *aio,
		  const struct nvs_checkpoint *checkpoint, struct nvs_error *error)
{
	int rc = 0;

	*reading = (struct reading){.checkpoint = checkpoint, .aio = aio};
	if (!checkpoint->has_data)
		return error_set(error, -EINVAL, "the checkpoint is a header without data");
	reading->files = calloc(checkpoint->nfiles, sizeof(struct nvs_file *));
	if (!reading->files)
		return error_set(error, -ENOMEM, "no memory for the files of a checkpoint");
	for (size_t i = 0; i < checkpoint->nfiles && !rc; i++) {
		int fd = reading_open(checkpoint, i, error);

		if (fd < 0)
			return fd;
		rc = nvs_file_from_fd(aio, fd, 0, &reading->files[i], error);
		close(fd);
	}
	return rc;
}

#define STORAGE_MEMORY ((uint64_t)4 << 20)
#define CHUNK	       ((uint64_t)1 << 20) /* bytes between multiples of it in the file */
#define DEPTH	       (STORAGE_MEMORY / CHUNK)

/*
 * The CRC-32 of a storage's bytes. `memory`, STORAGE_MEMORY bytes of huge_map, must stay valid
 * until the file is closed. A chunk lies in it as in the file, so that it is read directly. Bytes
 * before `summed`, a place in the file, are summed; up to `begun` they are being read.
 */
static int storage_sum(const struct storage *storage, struct nvs_aio *aio, struct nvs_file *file,
		       char *memory, uint32_t *crc, struct nvs_error *error)
{
	uint64_t summed = storage->offset, begun = summed, end = summed + storage->nbytes;
	struct nvs_request *requests[DEPTH];
	int rc = 0, waited;

	*crc = 0;
	do {
		/* Begins to read the next chunks; those in flight have places of their own. */
		while (!rc && begun < end && begun < (summed / CHUNK + DEPTH) * CHUNK) {
			uint64_t next = min_u64((begun / CHUNK + 1) * CHUNK, end);

			rc = nvs_aio_pread(aio, file, memory + begun % STORAGE_MEMORY, next - begun,
					   begun, &requests[begun / CHUNK % DEPTH], error);
			if (!rc)
				begun = next;
		}
		if (summed < begun) {
			uint64_t next = min_u64((summed / CHUNK + 1) * CHUNK, end);

			assert(next <= begun);
			waited = requests_finish(aio, &requests[summed / CHUNK % DEPTH], 1,
						 rc ? NULL : error);
			rc = rc ? rc : waited;
			if (!rc)
				*crc = zip_crc32_add(*crc, memory + summed % STORAGE_MEMORY,
						     next - summed);
			summed = next;
		}
	} while (summed < begun || (!rc && begun < end));
	return rc;
}

int reading_check(struct reading *reading, const struct entry *entry, struct nvs_error *error)
{
	const struct nvs_checkpoint *checkpoint = reading->checkpoint;
	const struct storage *storage;
	uint32_t crc = 0;
	int rc;

	if (!entry_is_view(checkpoint, entry))
		return 0;
	assert(entry->storage < checkpoint->nstorages);
	storage = &checkpoint->storages[entry->storage];
	if (!reading->checked)
		reading->checked = calloc(checkpoint->nstorages, sizeof(bool));
	if (!reading->memory)
		reading->memory = huge_map(STORAGE_MEMORY, NULL);
	if (!reading->checked || !reading->memory)
		return error_set(error, -ENOMEM, "no memory to read the storages of %s",
				 checkpoint->paths[0]);
	if (reading->checked[entry->storage])
		return 0;
	rc = storage_sum(storage, reading->aio, reading->files[entry->file], reading->memory, &crc,
			 error);
	if (!rc && crc != storage->crc)
		rc = error_about(error, -EBADMSG, entry->name, 0, storage->offset,
				 "%s: tensor %s is a part of a storage whose bytes do not have the "
				 "checksum that the file states",
				 checkpoint->paths[entry->file], entry->name);
	reading->checked[entry->storage] = !rc;
	return rc;
}

void reading_end(struct reading *reading)
{
	for (size_t i = 0; reading->files && i < reading->checkpoint->nfiles; i++)
		nvs_file_close(reading->files[i]);
	if (reading->memory)
		munmap(reading->memory, STORAGE_MEMORY);
	free(reading->checked);
	free(reading->files);
	*reading = (struct reading){0};
}
