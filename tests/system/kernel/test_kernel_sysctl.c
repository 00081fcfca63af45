/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of the whole machine: exhausted aio contexts (fs.aio-max-nr) and io_uring disabled by
 * kernel.io_uring_disabled. A child takes the contexts, so its end frees them; the sysctl is
 * restored before anything is asserted.
 */
#include <libaio.h>
#include <sys/syscall.h>

#include "aio/aio.h"
#include "config/config.h"
#include "swap/swap_fixture.h"

static int open_with(enum nvs_ioengine ioengine, uint32_t threads, struct nvs_aio_stats *stats,
		     struct nvs_error *error)
{
	const struct aio_config config = {.block_size = 64 * KIB,
					  .queue_depth = 8,
					  .thread_count = threads,
					  .overlap_events = true,
					  .ioengine = ioengine};
	struct nvs_aio *aio;
	int rc = aio_open_with(&aio, &config, NULL, NULL, NULL, error);

	if (rc)
		return rc;
	nvs_aio_get_stats(aio, stats);
	nvs_aio_close(aio);
	return 0;
}

/* ---- fs.aio-max-nr ---- */

/* Takes all contexts for `events` events that the kernel grants; returns their number. */
static size_t take_contexts(io_context_t *contexts, size_t max, int events)
{
	size_t n = 0;

	while (events && n < max) {
		contexts[n] = NULL;
		if (io_setup(events, &contexts[n]))
			events /= 2;
		else
			n++;
	}
	return n;
}

/* With io_uring denied, auto tries libaio and goes on to the next engine. */
static int open_without_contexts(void *arg)
{
	static io_context_t contexts[4096];
	struct nvs_aio_stats stats = {.size = sizeof(stats)};
	struct nvs_error error = {.size = sizeof(error)};
	size_t n;

	(void)arg;
	if (deny_syscall(SYS_io_uring_setup, EPERM))
		return CHILD_SKIPPED;
	/* Small ones at last. */
	n = take_contexts(contexts, 2048, 4096);
	if (!n || n == 2048)
		return CHILD_SKIPPED;
	io_destroy(contexts[--n]);
	n += take_contexts(contexts + n, 2048, 16);
	EXPECT(open_with(NVS_IOENGINE_LIBAIO, 1, &stats, &error) == -ENOTSUP);
	EXPECT(!strcmp(error.subject, "ioengine") && strstr(error.text, "fs.aio-max-nr"));
	EXPECT(strstr(error.text, "raise it or lower queue_depth x thread_count"));
	EXPECT(!open_with(NVS_IOENGINE_AUTO, 1, &stats, &error));
	EXPECT(!strcmp(stats.ioengine, "posix") && strstr(stats.ioengine_reason, "fs.aio-max-nr"));

	/* If some workers get a context but not all, opening fails and releases those contexts. */
	while (n && open_with(NVS_IOENGINE_LIBAIO, 1, &stats, &error))
		EXPECT(!io_destroy(contexts[--n]));
	EXPECT(n);
	EXPECT(open_with(NVS_IOENGINE_LIBAIO, 64, &stats, &error) == -ENOTSUP);
	EXPECT(strstr(error.text, "fs.aio-max-nr"));
	EXPECT(!open_with(NVS_IOENGINE_LIBAIO, 1, &stats, &error));
	return CHILD_OK;
}

TEST(without_aio_contexts_libaio_fails_and_auto_goes_on)
{
	pass_in_child(open_without_contexts, NULL, "the contexts of aio can't be exhausted here");
}

/* ---- kernel.io_uring_disabled ---- */

#define DISABLED "/proc/sys/kernel/io_uring_disabled"

static bool set_disabled(char value)
{
	int fd = open(DISABLED, O_WRONLY | O_CLOEXEC);
	bool set = fd >= 0 && write(fd, &value, 1) == 1;

	if (fd >= 0)
		close(fd);
	return set;
}

static char disabled_now(void)
{
	char value = 0;
	int fd = open(DISABLED, O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!read(fd, &value, 1);
		close(fd);
	}
	return value;
}

TEST(auto_logs_a_disabled_io_uring_and_goes_on)
{
	static struct nvs_machine_info info = {.size = sizeof(info)};
	struct nvs_aio_stats stats = {.size = sizeof(stats), .ioengine = ""};
	struct nvs_error named = {.size = sizeof(named)}, any = {.size = sizeof(any)};
	int named_rc, any_rc, info_rc;
	char was = disabled_now();

	if (!was)
		SKIP("this kernel has no " DISABLED);
	if (!set_disabled('2'))
		SKIP("only root can disable io_uring");
	named_rc = open_with(NVS_IOENGINE_IO_URING, 1, &stats, &named);
	any_rc = open_with(NVS_IOENGINE_AUTO, 1, &stats, &any);
	info_rc = nvs_machine_get_info(&info, NULL);
	assert_true(set_disabled(was));

	assert_int_equal(named_rc, -ENOTSUP);
	assert_says(named.text, "sysctl kernel.io_uring_disabled");
	assert_says(named.text, "set it to auto to use one that does");
	assert_int_equal(any_rc, 0);
	assert_string_not_equal(stats.ioengine, "io_uring");
	assert_says(stats.ioengine_reason, "sysctl kernel.io_uring_disabled");
	assert_int_equal(info_rc, 0);
	assert_int_equal(info.io_uring_disabled, 2);
	assert_false(info.ioengine[NVS_IOENGINE_IO_URING].works);
	assert_string_equal(nvs_ioengine_name(info.auto_ioengine), stats.ioengine);
}

EACH_TEST(NULL, cleanup)
