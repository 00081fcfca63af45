/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public transfers, which have the layout of the layer's own.
 */
#include "aio/transfer.h"

_Static_assert(sizeof(struct nvs_transfer) == sizeof(struct transfer), "one layout");

int nvs_aio_submit(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
		   struct nvs_error *error)
{
	return aio_submit(aio, (struct transfer *const *)transfers, n, error);
}

int nvs_aio_wait(struct nvs_aio *aio, struct nvs_transfer *const *transfers, size_t n,
		 int timeout_ms, struct nvs_error *error)
{
	return aio_wait(aio, (struct transfer *const *)transfers, n, timeout_ms, error);
}

bool nvs_transfer_completed(const struct nvs_transfer *transfer)
{
	return transfer_completed((const struct transfer *)transfer);
}
