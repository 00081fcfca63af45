/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors, and the log.
 *
 *	rc = nvs_config_load(config, "ds_config.json", &error);
 *	if (rc)
 *		fprintf(stderr, "nvswap %s: %s\n", nvs_version(), error.text);
 *	rc = nvs_file_sync(file, NULL);
 *	if (rc)
 *		fprintf(stderr, "%s\n", nvs_strerror(rc));
 */
#ifndef NVSWAP_ERROR_H
#define NVSWAP_ERROR_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a program may act on, besides the code. */
enum nvs_cause {
	NVS_CAUSE_OTHER, /* the code says it */
	NVS_CAUSE_IO,	/* an I/O failed or is overdue, at `offset` in the file that `text` names */
	NVS_CAUSE_ROOM, /* tensors that are pinned leave no room in the pool: release some */
};

/*
 * An error: `text` is the complete message for a person, the other fields are for programs. The
 * caller sets `size` once, before the first call that gets the structure:
 *	struct nvs_error error = {.size = sizeof(error)};
 * A function that fails writes the fields within `size`, and cuts `text` to it. It writes nothing
 * if `size` does not cover `code`, so with a size of 0. A function that succeeds writes nothing.
 *
 * Other structures begin with their size too. One that is no larger than a size_t, or no multiple
 * of it, is not set.
 */
struct nvs_error {
	size_t size;	   /* of this structure in bytes, set by the caller; the library keeps it */
	int code;	   /* the negative errno that the function returned */
	unsigned line;	   /* line in the configuration file, from 1; 0: no file is involved */
	uint64_t offset;   /* NVS_CAUSE_IO: byte offset in the file that `text` names */
	char subject[128]; /* the key, tensor or option concerned; "" if none */
	char text[1024];   /* one sentence or more, without a trailing newline */
	enum nvs_cause cause;
	/* The path of a failed I/O, or one that is missing, full or not open for writing: its bytes
	 * in `text`. 0 bytes: none, or `text` has it with escapes or not whole. */
	unsigned path_at;
	unsigned path_nbytes;
};

/* Describes a negative errno that nvswap returned, for callers that passed no nvs_error; never
 * NULL.
 */
NVS_API const char *nvs_strerror(int code);

enum nvs_log_level { NVS_LOG_ERROR, NVS_LOG_WARNING, NVS_LOG_INFO, NVS_LOG_DEBUG };

/*
 * Receives one log message, a line without its newline. Called from any thread, including the
 * library's own, with no lock of the library held. It may call nvswap, except to close the object
 * that the message is about. It may block for as long as it likes, and wait for a lock whose owner
 * is in a call of nvswap: I/O and all waits go on meanwhile. Of the messages that arise while it
 * blocks, 1000 of each aio and engine are kept, and a warning says how many were lost. These calls
 * alone must not be made with a lock held that the function takes:
 *  - nvs_aio_close, nvs_engine_close, nvs_engine_abandon, nvs_optimizer_close and
 *    nvs_optimizer_abandon return when the function has returned from the last message about the
 *    object. It is not called after that, so what `arg` points to may be freed.
 *  - Those that open an aio, engine or optimizer, nvs_memory_alloc, and those that change a
 *    configuration call the function themselves, on the caller's thread.
 */
typedef void nvs_log_fn(void *arg, enum nvs_log_level level, const char *text);

#ifdef __cplusplus
}
#endif

#endif
