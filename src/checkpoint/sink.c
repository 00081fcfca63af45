/* SPDX-License-Identifier: Apache-2.0 */
/* Files of a checkpoint that are written, through the aio. */
#include <assert.h>
#include <errno.h>

#include "base/memory/huge_map.h"
#include "checkpoint/checkpoint.h"

int sink_open(struct sink *sink, struct nvs_aio *aio, int fd, struct nvs_error *error)
{
	int rc = nvs_file_from_fd(aio, fd, NVS_FILE_WRITE, &sink->direct, error);

	return rc ? rc
		  : nvs_file_from_fd(aio, fd, NVS_FILE_WRITE | NVS_FILE_BUFFERED, &sink->buffered,
				     error);
}

void sink_close(struct sink *sink)
{
	nvs_file_close(sink->direct);
	nvs_file_close(sink->buffered);
	*sink = (struct sink){0};
}

static int submit_write(struct nvs_aio *aio, struct nvs_file *file, const char *data,
			uint64_t nbytes, uint64_t offset, struct nvs_request **requests, size_t *n,
			struct nvs_error *error)
{
	int rc = nbytes ? nvs_aio_pwrite(aio, file, data, nbytes, offset, &requests[*n], error) : 0;

	*n += nbytes && !rc;
	assert(*n <= WRITES_MAX);
	return rc;
}

int sink_write(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
	       uint64_t offset, struct nvs_request **requests, size_t *n, struct nvs_error *error)
{
	uint64_t page = page_bytes(), end = offset + nbytes;
	uint64_t from = (offset + page - 1) / page * page, to = end / page * page;
	const char *bytes = data;
	int rc;

	*n = 0;
	if (from >= to || !sink->direct || !nvs_file_direct(sink->direct))
		return submit_write(aio, sink->buffered, bytes, nbytes, offset, requests, n, error);
	rc = submit_write(aio, sink->direct, bytes + (from - offset), to - from, from, requests, n,
			  error);
	if (!rc)
		rc = submit_write(aio, sink->buffered, bytes, from - offset, offset, requests, n,
				  error);
	if (!rc)
		rc = submit_write(aio, sink->buffered, bytes + (to - offset), end - to, to,
				  requests, n, error);
	return rc;
}

int requests_finish(struct nvs_aio *aio, struct nvs_request **requests, size_t n,
		    struct nvs_error *error)
{
	int rc = n ? nvs_aio_wait(aio, requests, n, -1, error) : 0;

	/* An overdue request stays open: the owner of its memory waits in nvs_file_close. */
	for (size_t i = 0; i < n; i++)
		nvs_request_close(requests[i]);
	return rc;
}

int sink_write_now(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
		   uint64_t offset, struct nvs_error *error)
{
	struct nvs_request *requests[WRITES_MAX];
	size_t n;
	int rc = sink_write(sink, aio, data, nbytes, offset, requests, &n, error);
	int waited = requests_finish(aio, requests, n, rc ? NULL : error);

	return rc ? rc : waited;
}
