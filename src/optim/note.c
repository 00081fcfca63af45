/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's note in the commits of an optimizer, which its engine keeps: the optimizer's own
 * header is a tensor of the store and uses no note.
 */
#include <errno.h>

#include "optim/internal.h"

int nvs_optimizer_set_note(struct nvs_optimizer *optimizer, const void *note, size_t nbytes,
			   struct nvs_error *error)
{
	int rc = check_given(optimizer, "optimizer", error);

	return rc ? rc : engine_set_note(optimizer->engine, note, nbytes, error);
}

int nvs_optimizer_get_note(struct nvs_optimizer *optimizer, void *note, size_t *nbytes)
{
	return optimizer ? nvs_engine_get_note(optimizer->engine, note, nbytes) : -EINVAL;
}
