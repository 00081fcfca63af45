/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a checkpoint whose data is read. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"

static int open_file(struct reading *reading, size_t i, struct nvs_error *error)
{
	const char *path = reading->checkpoint->paths[i];
	int rc, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	if (fd < 0)
		return error_set(error, -errno, "can't open %s: %s", path, nvs_strerror(-errno));
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
		rc = open_file(reading, i, error);
	return rc;
}

void reading_end(struct reading *reading)
{
	for (size_t i = 0; reading->files && i < reading->checkpoint->nfiles; i++)
		nvs_file_close(reading->files[i]);
	free(reading->files);
	*reading = (struct reading){0};
}
