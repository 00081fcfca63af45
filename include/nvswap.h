/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvswap: moves the tensors of a model that does not fit in memory between a pinned pool in
 * host memory and NVMe, at the speed of the drive, while the caller computes.
 *
 * Conventions that hold for everything below unless a declaration says otherwise:
 *
 * - A function returns 0 or a negative errno. The `error` argument receives the message for a
 *   person; it may be NULL.
 * - A structure that the caller fills or reads begins with its size in bytes, which the caller
 *   sets; 0 is refused with -EINVAL. The structures of a later version have more fields at their
 *   end. What the library reads beyond a smaller structure is 0, and it writes nothing beyond it. A
 *   larger structure is -E2BIG if a field that the library does not know is not 0; such a field of
 *   a result stays as it is. A structure within another either has its last place or does not grow.
 * - Every function may be called from any thread, concurrently with any other. No function may be
 *   called on an object that another thread is closing, or that is closed.
 * - No function is a cancellation point: a thread that is cancelled amid a call (pthread_cancel)
 *   returns from it as if it had not been, and ends at its own next cancellation point. Functions
 *   of the caller run within calls, so with cancellation disabled, or on threads of the library;
 *   they must return and not end their thread. No call is safe with PTHREAD_CANCEL_ASYNCHRONOUS.
 * - A function that opens an object stores NULL in the caller's pointer if it fails.
 * - `timeout_ms` is in milliseconds; a negative one waits without a limit, as in poll(2), 0 does
 *   not wait. A wait that times out returns -ETIMEDOUT; a call with timeout 0 that would have to
 *   wait returns -EAGAIN.
 * - The library never prints, exits or installs signal handlers, and reads the environment in
 *   nvs_config_read_rank only.
 */
#ifndef NVSWAP_H
#define NVSWAP_H

#include "nvswap/aio.h"
#include "nvswap/checkpoint.h"
#include "nvswap/config.h"
#include "nvswap/dtype.h"
#include "nvswap/engine.h"
#include "nvswap/error.h"
#include "nvswap/file.h"
#include "nvswap/latency.h"
#include "nvswap/machine.h"
#include "nvswap/memory.h"
#include "nvswap/optimizer.h"
#include "nvswap/request.h"
#include "nvswap/step.h"
#include "nvswap/store.h"
#include "nvswap/tensor.h"
#include "nvswap/trace.h"
#include "nvswap/version.h"

#endif
