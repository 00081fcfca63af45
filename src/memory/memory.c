/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned memory of callers: the process's list of allocations, each an arena like that of a pool
 * and registered with an aio. The list's lock is not held while memory is mapped or registered.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "aio/aio.h"
#include "base/threads/cancel.h"
#include "pool/pool.h"

struct memory {
	LIST_ENTRY(memory) link;
	struct arena arena;
	struct aio_memory registered;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(memories, memory) all = LIST_HEAD_INITIALIZER(all);
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int fork_error; /* of pthread_atfork() */

/* In a child, which has none of the memory. Its copies of the entries stay allocated: another
 * thread of the parent may have been changing the list. */
static void forget_all(void)
{
	lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	LIST_INIT(&all);
}

static void watch_forks(void)
{
	fork_error = pthread_atfork(NULL, NULL, forget_all);
}

static const struct arena_words words = {
	.lock_key = "nbytes",
	.lock_subject = "nvs_memory_alloc",
	.lock_remedy = "allocate less",
	.size_key = "nbytes",
	.subject = "nvs_memory_alloc",
	.size_remedy = "allocate less",
};

static int check_path(const char *path, struct nvs_error *error)
{
	struct stat st;

	if (!path)
		return 0;
	if (stat(path, &st))
		return error_about(error, -errno, path, 0, 0, "%s: %s", path, nvs_strerror(-errno));
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return error_about(
			error, -EINVAL, path, 0, 0,
			"%s is neither a directory nor a file nor a block device; use one of these",
			path);
	return 0;
}

int nvs_memory_alloc(struct nvs_aio *aio, size_t nbytes, const char *path, void **data,
		     struct nvs_error *error)
{
	HOLD_CANCEL;
	struct memory *memory;
	int rc;

	if (data)
		*data = NULL;
	if (!data || !nbytes)
		return error_set(error, -EINVAL, data ? "nbytes is 0" : "data is NULL");
	rc = check_path(path, error);
	if (rc)
		return rc;
	pthread_once(&once, watch_forks);
	memory = fork_error ? NULL : calloc(1, sizeof(*memory));
	if (!memory)
		return error_set(error, -ENOMEM, "out of memory for the list of pinned memory");

	struct pool_options options = {.nbytes = nbytes,
				       .pin = true,
				       .node = -1,
				       .log = aio ? aio_log(aio) : NULL,
				       .words = &words};
	struct topo *topo = NULL;

	rc = path ? topo_open(&topo, NULL, error) : 0;
	if (!rc) {
		if (path)
			options.node = topo_node_of_paths(topo, &path, 1);
		options.topo = topo;
		rc = arena_open(&memory->arena, &options, error);
		topo_close(topo);
	}
	if (rc) {
		free(memory);
		return rc;
	}
	assert(memory->arena.locked >= nbytes);
	if (aio) {
		struct arena *arena = &memory->arena;
		char whole[32], part[32];
		size_t done;

		rc = aio_register_most(aio, arena->data, arena->used, &done);

		aio_memory_add(aio, &memory->registered, arena->data);
		if (rc)
			log_say(aio_log(aio), NVS_LOG_INFO,
				"of %s of pinned memory, only %s could be registered with the "
				"rings: %s",
				size_text(arena->used, whole), size_text(done, part),
				nvs_strerror(rc));
	}
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&all, memory, link);
	pthread_mutex_unlock(&lock);
	*data = memory->arena.data;
	return 0;
}

int nvs_memory_free(void *data)
{
	HOLD_CANCEL;
	struct memory *memory;

	if (!data)
		return 0;
	pthread_mutex_lock(&lock);
	memory = LIST_FIRST(&all);
	while (memory && memory->arena.data != data)
		memory = LIST_NEXT(memory, link);
	if (memory)
		LIST_REMOVE(memory, link);
	pthread_mutex_unlock(&lock);
	if (!memory)
		return -EINVAL;
	aio_memory_remove(&memory->registered);
	arena_close(&memory->arena);
	free(memory);
	return 0;
}

bool nvs_memory_is_pinned(const void *data, size_t nbytes)
{
	bool found = false;

	pthread_mutex_lock(&lock);
	for (const struct memory *memory = LIST_FIRST(&all); memory && !found;
	     memory = LIST_NEXT(memory, link)) {
		const char *begin = memory->arena.data;
		uint64_t used = memory->arena.used;

		found = (const char *)data >= begin && (const char *)data < begin + used &&
			nbytes <= used - (uint64_t)((const char *)data - begin);
	}
	pthread_mutex_unlock(&lock);
	return found;
}
