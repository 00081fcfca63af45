/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint whose data is read. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory/huge_map.h"
#include "checkpoint/checkpoint.h"

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

static int open_checkpoint_file(struct reading *reading, size_t i, struct nvs_error *error)
{
	int rc, fd = reading_open(reading->checkpoint, i, error);

	if (fd < 0)
		return fd;
	rc = nvs_file_from_fd(reading->aio, fd, 0, &reading->files[i], error);
	close(fd);
	return rc;
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
	for (size_t i = 0; i < checkpoint->nfiles && !rc; i++)
		rc = open_checkpoint_file(reading, i, error);
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
		reading->checked = calloc(reading->checkpoint->nstorages, sizeof(bool));
	if (!reading->memory)
		reading->memory = huge_map(STORAGE_MEMORY, NULL);
	if (!reading->checked || !reading->memory)
		return error_set(error, -ENOMEM, "no memory to read the storages of %s",
				 reading->checkpoint->paths[0]);
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
