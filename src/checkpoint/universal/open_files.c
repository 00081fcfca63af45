/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of parameters that are open: those of the last ones stay so, since the tiles that follow
 * belong to the same parameters. Opening a file makes all workers of the aio take note of it, and a
 * tile has three; a process may not have all files of a checkpoint open.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/universal/universal.h"

static int open_now(const struct open_files *files, struct open_file *file, struct nvs_error *error)
{
	char place[PLACE_MAX], path[1024];
	int rc = 0, fd;

	param_place(files->params, &files->params->all[file->owner], file->part, place);
	fd = tree_open_file(files->tree, place, files->flags, error);
	if (fd < 0)
		return fd;
	if (files->stamps) {
		snprintf(path, sizeof(path), "%s/zero/%s", files->tree->path, place);
		rc = stamp_check(&files->stamps[file->owner * PARTS + file->part], fd, path, error);
	}
	if (!rc)
		rc = files->flags & O_ACCMODE
			     ? sink_open(&file->sink, files->aio, fd, error)
			     : nvs_file_from_fd(files->aio, fd, 0, &file->source, error);
	close(fd);
	return rc;
}

static void close_now(struct open_file *file)
{
	sink_close(&file->sink);
	nvs_file_close(file->source);
	file->source = NULL;
}

/* Under the lock: the file, or the one that was last used before all others and is not in use. */
static struct open_file *choose_file(struct open_files *files, size_t owner, unsigned part)
{
	struct open_file *oldest = NULL;

	for (size_t i = 0; i < OPEN_FILES_MAX; i++) {
		struct open_file *file = &files->all[i];

		if (file->state != FILE_CLOSED && file->owner == owner && file->part == part)
			return file;
		if (!file->users && (!oldest || file->used < oldest->used))
			oldest = file;
	}
	return oldest;
}

/* Under the lock, which it releases while the file is opened. */
static int reopen(struct open_files *files, struct open_file *file, size_t owner, unsigned part,
		  struct nvs_error *error)
{
	int rc;

	assert(!file->users && file->state != FILE_OPENING);
	file->users = 1;
	file->files = files;
	file->owner = owner;
	file->part = part;
	file->state = FILE_OPENING;
	pthread_mutex_unlock(&files->lock);
	close_now(file);
	rc = open_now(files, file, error);
	if (rc)
		close_now(file);
	pthread_mutex_lock(&files->lock);
	file->state = rc ? FILE_CLOSED : FILE_OPEN;
	file->users -= rc != 0;
	pthread_cond_broadcast(&files->opened);
	return rc;
}

/* Under the lock. -EAGAIN: all are in use. */
static int take_file(struct open_files *files, size_t owner, unsigned part, struct open_file **file,
		     struct nvs_error *error)
{
	for (;;) {
		*file = choose_file(files, owner, part);
		if (!*file)
			return -EAGAIN;
		(*file)->used = ++files->clock;
		if ((*file)->state == FILE_CLOSED || (*file)->owner != owner ||
		    (*file)->part != part)
			return reopen(files, *file, owner, part, error);
		if ((*file)->state == FILE_OPEN) {
			(*file)->users++;
			return 0;
		}
		/* Another thread opens it. */
		pthread_cond_wait(&files->opened, &files->lock);
	}
}

int open_files_take(struct open_files *files, size_t owner, unsigned part, struct open_file **file,
		    struct nvs_error *error)
{
	int rc;

	pthread_mutex_lock(&files->lock);
	rc = take_file(files, owner, part, file, error);
	pthread_mutex_unlock(&files->lock);
	if (rc == -EAGAIN) {
		/* One beyond those that stay open. */
		*file = calloc(1, sizeof(**file));
		if (!*file)
			rc = error_set(error, -ENOMEM, "no memory for a file");
		else {
			**file = (struct open_file){.owner = owner, .part = part, .apart = true};
			rc = open_now(files, *file, error);
			if (rc) {
				close_now(*file);
				free(*file);
			}
		}
	}
	if (rc)
		*file = NULL;
	return rc;
}

void open_files_release(struct state_move *move, struct state_io *io)
{
	struct open_file *file = io->file;

	(void)move;
	if (!file)
		return;
	if (file->apart) {
		close_now(file);
		free(file);
		return;
	}
	pthread_mutex_lock(&file->files->lock);
	assert(file->users && file->state == FILE_OPEN);
	file->users--;
	pthread_mutex_unlock(&file->files->lock);
}

void open_files_begin(struct open_files *files, struct nvs_aio *aio, const struct tree *tree,
		      const struct params *params, int flags, const struct stamp *stamps)
{
	*files = (struct open_files){.lock = PTHREAD_MUTEX_INITIALIZER,
				     .opened = PTHREAD_COND_INITIALIZER,
				     .aio = aio,
				     .tree = tree,
				     .params = params,
				     .flags = flags,
				     .stamps = stamps};
}

void open_files_end(struct open_files *files)
{
	for (size_t i = 0; i < OPEN_FILES_MAX; i++) {
		assert(!files->all[i].users);
		close_now(&files->all[i]);
	}
}
