/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The note of the caller that a commit carries. Notes never change: calls and commits hold
 * references to them, which are counted under the lock, and copy them without it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads/cancel.h"
#include "swap/calls/calls.h"

struct note {
	unsigned references;
	uint32_t nbytes;
	uint8_t bytes[];
};

/* With one reference. NULL: out of memory. */
static struct note *note_new(const void *data, size_t nbytes)
{
	struct note *note = malloc(sizeof(*note) + nbytes);

	if (!note)
		return NULL;
	note->references = 1;
	note->nbytes = (uint32_t)nbytes;
	if (nbytes)
		memcpy(note->bytes, data, nbytes);
	return note;
}

struct note *note_hold(struct note *note)
{
	assert(note->references && note->references < UINT32_MAX);
	note->references++;
	return note;
}

void note_release(struct note *note)
{
	if (!note)
		return;
	if (!--note->references)
		free(note);
}

struct store_note note_contents(const struct note *note)
{
	return (struct store_note){.data = note->bytes, .nbytes = note->nbytes};
}

int note_open(struct nvs_engine *engine, struct nvs_error *error)
{
	struct store_note found = store_found_note(engine->store);

	engine->commit.last_note = note_new(found.data, found.nbytes);
	if (!engine->commit.last_note)
		return error_set(error, -ENOMEM, "out of memory while reading the manifest");
	engine->commit.note = note_hold(engine->commit.last_note);
	return 0;
}

void note_close(struct nvs_engine *engine)
{
	/* No commit or call holds one any more. */
	assert(!engine->commit.note ||
	       engine->commit.note->references ==
		       1u + (engine->commit.note == engine->commit.last_note));
	note_release(engine->commit.note);
	note_release(engine->commit.last_note);
	engine->commit.note = engine->commit.last_note = NULL;
}

void note_committed(struct nvs_engine *engine, struct note *note)
{
	note_release(engine->commit.last_note);
	engine->commit.last_note = note_hold(note);
}

int engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
		    struct nvs_error *error)
{
	struct note *made;
	int rc;

	if (!engine || (!note && nbytes))
		return error_set(error, -EINVAL, "nvs_engine_set_note: the %s is NULL",
				 engine ? "note" : "engine");
	if (nbytes > NVS_NOTE_MAX)
		return error_set(error, -E2BIG, "a note has at most %u bytes; this one has %zu",
				 NVS_NOTE_MAX, nbytes);
	rc = check_writable(engine, error);
	if (rc || !engine->keep)
		return rc;
	made = note_new(note, nbytes);
	if (!made)
		return error_set(error, -ENOMEM, "out of memory while copying a note");
	engine_lock(engine);
	note_release(engine->commit.note);
	engine->commit.note = made;
	engine_unlock(engine);
	return 0;
}

int nvs_engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
			struct nvs_error *error)
{
	HOLD_CANCEL;
	int rc = check_unowned(engine, "nvs_optimizer_set_note sets the note", error);

	return rc ? rc : engine_set_note(engine, note, nbytes, error);
}

int nvs_engine_get_note(struct nvs_engine *engine, void *note, size_t *nbytes)
{
	struct note *committed;
	int rc = 0;

	if (!engine || !nbytes)
		return -EINVAL;
	engine_lock(engine);
	committed = note_hold(engine->commit.last_note);
	engine_unlock(engine);
	if (note && *nbytes < committed->nbytes)
		rc = -ERANGE;
	else if (note && committed->nbytes)
		memcpy(note, committed->bytes, committed->nbytes);
	*nbytes = committed->nbytes;
	engine_lock(engine);
	note_release(committed);
	engine_unlock(engine);
	return rc;
}
