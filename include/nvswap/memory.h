/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pinned memory for a caller's own transfers.
 *
 *	rc = nvs_memory_alloc(aio, 64 << 20, "/mnt/nvme", &memory, &error);
 *	if (!rc && nvs_memory_is_pinned(memory, 64 << 20))
 *		rc = nvs_aio_pread(aio, file, memory, 64 << 20, 0, &request, &error) ||
 *		     nvs_aio_wait(aio, &request, 1, -1, &error);
 *	nvs_request_close(request);
 *	nvs_memory_free(memory);
 */
#ifndef NVSWAP_MEMORY_H
#define NVSWAP_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

#include "nvswap/aio.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Allocates pinned memory: `nbytes`, rounded up to whole pages, all of them zero. It is what
 * transfers and copies to a GPU want: locked, on huge pages where the machine has them, on the NUMA
 * node of a drive, and registered with an aio. Such memory is the process's: nvs_memory_free and
 * nvs_memory_is_pinned need no aio, and know what any thread allocated for any aio. It corresponds
 * to new_cpu_locked_tensor of DeepSpeed's aio_handle. A child after fork(2) does not have it: there
 * nvs_memory_is_pinned is false and nvs_memory_free -EINVAL. Each call makes a mapping of its own
 * and takes time for each page, so a program allocates few and long runs, before it needs them.
 *
 * `aio`: registers the memory with its rings, as nvs_aio_register_memory does; NULL: none. If not
 * all of it can be registered, as much as possible is, with a message in the log, and transfers
 * still work. nvs_aio_close ends that; the memory stays valid until nvs_memory_free. Registering
 * it, and ending that, interrupts the waits of all workers.
 * `path`: a directory, file or block device on the drive whose NUMA node the memory is bound to;
 * NULL: none. If the node is unknown, the drives of the path are on several, or the kernel refuses,
 * the memory is not bound.
 * *data: the memory, aligned to a page; NULL with an error.
 * Errors:
 * -EINVAL  `data` is NULL, `nbytes` is 0, or `path` is neither a directory nor a file nor a block
 *          device
 * -ENOMEM  the memory can't be mapped or locked; the error has limit, need and remedy
 * Others   those of looking up `path`, such as -ENOENT
 */
NVS_API int nvs_memory_alloc(struct nvs_aio *aio, size_t nbytes, const char *path, void **data,
			     struct nvs_error *error);
/*
 * Frees memory of nvs_memory_alloc. No transfer from or to it may be in flight, no thread may be
 * closing its aio, and it must not be registered with a GPU any more (nvs_engine_pool says why).
 * `data` may be NULL.
 * Errors:
 * -EINVAL  `data` is not what nvs_memory_alloc stored, or was freed; nothing is freed
 */
NVS_API int nvs_memory_free(void *data);
/* Returns whether memory is pinned: all of `nbytes` from `data` on lie in one run of
 * nvs_memory_alloc. Any part of
 * one counts, and its whole last page. */
NVS_API bool nvs_memory_is_pinned(const void *data, size_t nbytes);

#ifdef __cplusplus
}
#endif

#endif
