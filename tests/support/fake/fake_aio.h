/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An aio over a fake engine, and a file for it, as most tests of the aio layer need them. The
 * test closes both.
 */
#ifndef TESTS_SUPPORT_FAKE_FAKE_AIO_H
#define TESTS_SUPPORT_FAKE_FAKE_AIO_H

#include "aio/aio.h"
#include "support/fake/fake_engine.h"

/* The settings that tests of one worker vary. */
#define FAKE_CONFIG(...)                                                                           \
	(&(const struct aio_config){.thread_count = 1, .overlap_events = true, __VA_ARGS__})

/* `log` may be NULL. The test fails if the aio can't be opened. */
struct nvs_aio *fake_aio_open(struct fake *fake, const struct aio_config *config,
			      const struct nvs_log *log);
/* An empty file below build/tmp that is unlinked already; `flags` of nvs_file_open(). */
struct nvs_file *fake_file_open(struct nvs_aio *aio, unsigned flags);

#endif
