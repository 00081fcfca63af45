/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the aio: one aio over the fake engine, with a file, memory and completion
 * queues.
 */
#ifndef TESTS_AIO_AIO_FIXTURE_H
#define TESTS_AIO_AIO_FIXTURE_H

#include <poll.h>
#include <sched.h>

#include "base/clock.h"
#include "support/fake/fake_engine.h"
#include "support/submit.h"
#include "support/support.h"

#define AWAIT_MS  20000
#define AGES_MS	  1000000 /* a limit that passes only for aio_find_overdue() and aio_watch() */
#define AGES_NS	  (AGES_MS * UINT64_C(1000000))
#define RIG_BYTES (512u * 1024)

struct rig_options {
	uint32_t part; /* bytes of a block, and of a transfer below */
	uint32_t depth, io_timeout_ms;
	uint32_t workers; /* 0: one */
	struct nvs_log log;
	const struct engine_ops *ops; /* NULL: engine_fake */
	bool buffered;
	bool moves; /* the file has the data; otherwise it is empty, no bytes move, and I/Os are held */
};

struct rig {
	uint32_t part;
	struct fake fake;
	struct nvs_aio *aio;
	struct nvs_file *file;
	struct nvs_error error;
	struct completions *queues[2];
	char *data;			       /* RIG_BYTES */
	struct transfer transfers[8], *all[8]; /* adjacent writes of a part each */
};
static struct rig one_rig, *const rig = &one_rig;
#define DO(call) SUCCEEDS(call, &rig->error)
#define RIG(...) rig_begin(&(const struct rig_options){__VA_ARGS__})

static inline void rig_begin(const struct rig_options *options)
{
	struct aio_config config = *FAKE_CONFIG(.block_size = options->part,
						.queue_depth = options->depth,
						.io_timeout_ms = options->io_timeout_ms);

	*rig = (struct rig){.part = options->part, .error = {.size = sizeof(rig->error)}};
	rig->data = aligned_alloc(65536, RIG_BYTES);
	assert_non_null(rig->data);
	memset(rig->data, 7, RIG_BYTES);
	fake_init(&rig->fake, NULL);
	rig->fake.dry = !options->moves;
	if (options->workers)
		config.thread_count = options->workers;
	DO(aio_open_with(&rig->aio, &config, options->ops ? options->ops : &engine_fake, &rig->fake,
			 options->log.fn ? &options->log : NULL, &rig->error));
	rig->file = fake_file_open(rig->aio,
				   NVS_FILE_WRITE | (options->buffered ? NVS_FILE_BUFFERED : 0));
	for (unsigned i = 0; i < COUNT(rig->queues); i++)
		assert_int_equal(completions_open(&rig->queues[i]), 0);
	for (unsigned i = 0; i < COUNT(rig->all); i++) {
		rig->transfers[i] = (struct transfer){.file = rig->file,
						      .direction = NVS_WRITE,
						      .data = rig->data + (size_t)i * rig->part,
						      .nbytes = rig->part,
						      .offset = (uint64_t)i * rig->part};
		rig->all[i] = &rig->transfers[i];
	}
	if (options->moves) {
		DO(nvs_aio_pwrite(rig->aio, rig->file, rig->data, RIG_BYTES, 0, NULL, &rig->error));
		DO(nvs_aio_wait_all(rig->aio, -1, NULL, &rig->error));
	} else {
		fake_hold(&rig->fake);
	}
	fake_forget(&rig->fake);
}

static inline void rig_close(void)
{
	if (!rig->data)
		return;
	fake_release(&rig->fake, FAKE_ALL);
	nvs_file_close(rig->file);
	assert_int_equal(nvs_aio_close(rig->aio), 0);
	for (unsigned i = 0; i < COUNT(rig->queues); i++) {
		(void)completions_take(rig->queues[i]);
		completions_close(rig->queues[i]);
	}
	fake_destroy(&rig->fake);
	free(rig->data);
	*rig = (struct rig){0};
}

/* Starts a read of that part. */
static inline struct nvs_request *start(unsigned part)
{
	const uint64_t at = (uint64_t)part * rig->part;
	struct nvs_request *request = NULL;

	DO(nvs_aio_pread(rig->aio, rig->file, rig->data + at, rig->part, at, &request,
			 &rig->error));
	assert_non_null(request);
	return request;
}

static inline void await_completion(const struct nvs_request *request)
{
	while (nvs_request_status(request, NULL) == -EINPROGRESS)
		sched_yield();
}

static inline bool readable(int fd)
{
	return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
}

#endif
