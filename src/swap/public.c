/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls that change an engine, or take from it what a transfer reports. An engine that
 * belongs to an optimizer refuses them: its tensors, their pins and its commits have to agree with
 * what the optimizer knows of them. The optimizer makes the same calls by swap.h. Calls that only
 * look are elsewhere, and need no refusal.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "swap/calls/calls.h"

/* 0, or -EBUSY if the engine belongs to an optimizer: what to do instead. */
static int refuse_owned(const struct nvs_engine *engine, const char *instead,
			struct nvs_error *error)
{
	if (!engine)
		return 0;
	assert(engine->opened && *instead);
	if (!engine->owned)
		return 0;
	return error_set(error, -EBUSY,
			 "the engine belongs to an optimizer, which alone changes it: %s", instead);
}

#define OTHER_TENSORS                                                                              \
	"open another engine for tensors of your own (nvs_engine_open_on shares its workers)"
#define READ_STATE  "nvs_optimizer_get and nvs_optimizer_export read the state"
#define WRITE_STATE "nvs_optimizer_set and nvs_optimizer_import write the state"

/* ---- Engines ---- */

int nvs_engine_close(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_close closes it", error);

	return rc ? rc : engine_close(engine, error);
}

int nvs_engine_abandon(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_abandon closes it without a commit", error);

	if (rc || !engine)
		return rc;
	/* A call that is refused must not make the next one leave out the commit. */
	rc = engine_check_unshared(engine, error);
	if (rc)
		return rc;
	engine_abandon(engine);
	return engine_close(engine, error);
}

int nvs_engine_commit(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_commit commits it", error);

	return rc ? rc : engine_commit(engine, error);
}

int nvs_engine_set_note(struct nvs_engine *engine, const void *note, size_t nbytes,
			struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_set_note sets the note", error);

	return rc ? rc : engine_set_note(engine, note, nbytes, error);
}

int nvs_engine_step_begin(struct nvs_engine *engine, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_step takes a step", error);

	return rc ? rc : engine_step_begin(engine, error);
}

int nvs_engine_step_end(struct nvs_engine *engine, struct nvs_step_io *io, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "nvs_optimizer_step takes a step", error);

	return rc ? rc : engine_step_end(engine, io, error);
}

/* ---- Which tensors there are ---- */

int nvs_tensor_register(struct nvs_engine *engine, const struct nvs_tensor_spec *specs, size_t n,
			struct nvs_tensor **tensors, struct nvs_error *error)
{
	int rc = refuse_owned(engine, OTHER_TENSORS, error);

	return rc ? rc : batch_register(engine, specs, n, tensors, error);
}

int nvs_tensor_forget(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		      struct nvs_error *error)
{
	int rc = refuse_owned(engine, OTHER_TENSORS, error);

	return rc ? rc : batch_forget(engine, tensors, n, error);
}

int nvs_tensor_rename(struct nvs_engine *engine, struct nvs_tensor *tensor, const char *name,
		      struct nvs_error *error)
{
	int rc = refuse_owned(engine, OTHER_TENSORS, error);

	return rc ? rc : engine_rename(engine, tensor, name, error);
}

/* ---- Their contents ---- */

int nvs_tensor_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		   int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	int rc = refuse_owned(engine, WRITE_STATE, error);

	if (rc && pin)
		*pin = 0;
	return rc ? rc : batch_pin(engine, tensors, n, timeout_ms, pin, error);
}

int nvs_tensor_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       int timeout_ms, uint64_t *pin, struct nvs_error *error)
{
	int rc = refuse_owned(engine, READ_STATE, error);

	if (rc && pin)
		*pin = 0;
	return rc ? rc : batch_swap_in(engine, tensors, n, timeout_ms, pin, error);
}

long nvs_tensor_prefetch(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			 struct nvs_error *error)
{
	long rc = refuse_owned(engine, READ_STATE, error);

	return rc ? rc : batch_prefetch(engine, tensors, n, error);
}

int nvs_tensor_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		    uint64_t pin, int timeout_ms, struct nvs_error *error)
{
	int rc = refuse_owned(engine, "its calls wait for their transfers", error);

	return rc ? rc : batch_wait(engine, tensors, n, pin, timeout_ms, error);
}

int nvs_tensor_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		       uint64_t pin, enum nvs_how how, struct nvs_error *error)
{
	int rc = refuse_owned(engine, WRITE_STATE, error);

	return rc ? rc : batch_release(engine, tensors, n, pin, how, error);
}

int nvs_tensor_swap_out(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
			struct nvs_error *error)
{
	int rc = refuse_owned(engine, WRITE_STATE, error);

	return rc ? rc : batch_swap_out(engine, tensors, n, error);
}

int nvs_tensor_swap_out_from(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			     const void *const *data, size_t n, struct nvs_error *error)
{
	int rc = refuse_owned(engine, WRITE_STATE, error);

	return rc ? rc : batch_swap_out_from(engine, tensors, data, n, error);
}

int nvs_tensor_swap_in_to(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			  void *const *data, size_t n, struct nvs_error *error)
{
	int rc = refuse_owned(engine, READ_STATE, error);

	return rc ? rc : batch_swap_in_to(engine, tensors, data, n, error);
}

int nvs_tensor_read(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		    struct nvs_error *error)
{
	int rc = refuse_owned(engine, READ_STATE, error);

	return rc ? rc : batch_read(engine, ranges, n, error);
}

int nvs_tensor_write(struct nvs_engine *engine, const struct nvs_tensor_range *ranges, size_t n,
		     int timeout_ms, struct nvs_error *error)
{
	int rc = refuse_owned(engine, WRITE_STATE, error);

	return rc ? rc : batch_write(engine, ranges, n, timeout_ms, error);
}
