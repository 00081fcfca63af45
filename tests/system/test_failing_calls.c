/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that need no engine, with each of their libc calls failing in turn: the error is
 * returned, names its object and leaves nothing behind, or the function continues without the
 * result.
 */

#include "base/memory/extents.h"
#include "config/config.h"
#include "system/nth_fixture.h"
#include "topo/topo.h"

/* ---- Configuration ---- */

static const char config_text[] =
	"{\"aio\": {\"block_size\": 1048576, \"queue_depth\": 8},\n"
	" \"fp16\": {\"enabled\": true, \"loss_scale\": 0.5},\n"
	" \"gradient_clipping\": 1.25,\n"
	" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"betas\": [0.9, "
	"0.99]}},\n"
	" \"zero_optimization\": {\n"
	"   \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": [\"/a\", \"/b\"]},\n"
	"   \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/c\", \"ratio\": "
	"0.75}},\n"
	" \"other\": {\"of\": [1, 2.5, \"anything\", {\"at\": null}]}}\n";

/* A configuration with one path; `end` frees it after a call of that result, which has set `npaths`. */
static void begin(struct nvs_config *config)
{
	static const char *const before[] = {"/before"};

	inject_pause();
	config_init(config);
	assert_int_equal(nvs_config_set_paths(config, NVS_OFFLOAD_PARAM, before, 1, NULL), 0);
	inject_resume();
}

static void end(struct nvs_config *config, int rc, unsigned npaths)
{
	const struct offload_config *offload = &config->offload[NVS_OFFLOAD_PARAM];

	assert_int_equal(offload->npaths, rc ? 1 : npaths);
	assert_string_equal(offload->nvme_path[0], rc ? "/before" : "/a");
	config_free(config);
}

static int load_config(void *arg, struct nvs_error *error)
{
	struct nvs_config config;
	int rc;

	begin(&config);
	rc = nvs_config_load(&config, arg, error);
	assert_int_equal(config.offload[NVS_OFFLOAD_OPTIMIZER].npaths, rc ? 0 : 1);
	end(&config, rc, 2);
	return rc;
}

TEST(a_configuration_is_loaded_completely_or_not_at_all)
{
	char *path = (char *)(uintptr_t)path_in(temp_directory(), "ds.json");

	write_text(path, config_text);
	assert_true(fail_each(load_config, path, INJECT_MEMORY, ENOMEM, NULL) > 5);
	assert_int_equal(fail_each(load_config, path, INJECT_OPEN, EMFILE, NULL), 1);
	assert_int_equal(fail_each(load_config, path, INJECT_READ, EIO, NULL), 2);
	/* A signal does not end it. */
	assert_int_equal(
		fail_each(load_config, path, INJECT_OPEN | INJECT_READ, EINTR, survives_all), 0);
}

static int set_paths(void *arg, struct nvs_error *error)
{
	static const char *const paths[] = {"/a", "/b", "/c"};
	struct nvs_config config;
	int rc;

	(void)arg;
	begin(&config);
	rc = nvs_config_set_paths(&config, NVS_OFFLOAD_PARAM, paths, 3, error);
	end(&config, rc, 3);
	return rc;
}

TEST(paths_are_set_all_or_none)
{
	assert_int_equal(fail_each(set_paths, NULL, INJECT_MEMORY, ENOMEM, NULL), 3);
}

/* ---- Trace ---- */

static int open_trace(void *arg, struct nvs_error *error)
{
	struct nvs_trace *trace;
	int rc = nvs_trace_open(&trace, 100, error);

	(void)arg;
	assert_true(rc == 0 || !trace);
	nvs_trace_close(trace);
	return rc;
}

TEST(a_trace_is_opened_completely_or_not_at_all)
{
	assert_int_equal(fail_each(open_trace, NULL, INJECT_MEMORY | INJECT_MMAP, ENOMEM, NULL), 2);
}

struct trace_file {
	struct nvs_trace *trace;
	const char *path;
};

/* Writes over an older file, which stays unchanged or is replaced. */
static int write_trace(void *arg, struct nvs_error *error)
{
	const struct trace_file *file = arg;
	char *text;
	int rc;

	inject_pause();
	write_text(file->path, "older");
	inject_resume();
	rc = nvs_trace_write(file->trace, file->path, NULL, error);
	inject_pause();
	text = file_text(file->path);
	inject_resume();
	assert_int_equal(strcmp(text, "older") == 0, rc != 0);
	free(text);
	return rc;
}

TEST(a_trace_is_written_completely_or_the_older_file_stays)
{
	struct trace_file file = {.path = path_in(temp_directory(), "trace.json")};
	struct nvs_error error = {.size = sizeof(error)};

	SUCCEEDS(nvs_trace_open(&file.trace, 100, &error), &error);
	for (unsigned i = 0; i < 10; i++)
		nvs_trace_span(file.trace, "span", i, i + 1);
	assert_true(fail_each(write_trace, &file, INJECT_MEMORY, ENOMEM, NULL) > 0);
	assert_true(fail_each(write_trace, &file, INJECT_WRITE, ENOSPC, NULL) > 0);
	/* The first open looks for an older file; a failure counts as none. */
	assert_true(fail_each(write_trace, &file, INJECT_OPEN, EACCES, survives_all) > 1);
	nvs_trace_close(file.trace);
}

/* ---- Machine and path ---- */

static int look_at_machine(void *arg, struct nvs_error *error)
{
	struct nvs_machine_info info = {.size = sizeof(info)};
	int rc = nvs_machine_get_info(&info, error);

	(void)arg;
	for (unsigned i = 1; i < NVS_IOENGINE_COUNT && !rc; i++)
		assert_true(info.ioengine[i].works == !*info.ioengine[i].reason);
	return rc;
}

static int look_at_path(void *arg, struct nvs_error *error)
{
	struct nvs_path_info info = {.size = sizeof(info)};
	int rc = nvs_path_get_info(arg, &info, error);

	if (!rc) {
		assert_string_equal(info.path, arg);
		assert_true(info.total_bytes >= info.free_bytes);
	}
	return rc;
}

TEST(unreadable_facts_are_unknown_or_an_error)
{
	fail_each(look_at_machine, NULL, INJECT_OPEN | INJECT_READ, EACCES, survives_all);
	fail_each(look_at_machine, NULL, INJECT_MEMORY | INJECT_MMAP | INJECT_THREAD, ENOMEM,
		  survives_all);
	fail_each(look_at_machine, NULL, INJECT_QUEUE, EPERM, survives_all);
	assert_true(fail_each(look_at_path, (char[]){"src"}, INJECT_OPEN, EACCES, survives_all) >
		    0);
	fail_each(look_at_path, (char[]){"src"}, INJECT_MEMORY, ENOMEM, survives_all);
	fail_each(look_at_path, (char[]){"src/topo/topo.c"}, INJECT_OPEN, EIO, survives_all);
}

static int look_at_topology(void *arg, struct nvs_error *error)
{
	struct topo *topo;
	int rc = topo_open(&topo, NULL, error);

	(void)arg;
	if (rc)
		return rc;
	assert_true(topo_cores(topo, -1) > 0);
	topo_close(topo);
	return 0;
}

static int bind_to_core(void *arg, struct nvs_error *error)
{
	struct topo *topo = arg;
	int rc = topo_bind_thread_to_core(topo, -1, 0);

	error->code = rc;
	snprintf(error->text, sizeof(error->text), "topo_bind_thread_to_core returns it alone");
	return rc;
}

TEST(a_topology_without_memory_is_an_error)
{
	struct topo *topo;
	struct nvs_error error = {.size = sizeof(error)};

	assert_true(fail_each(look_at_topology, NULL, INJECT_MEMORY, ENOMEM, survives_all) >= 2);
	SUCCEEDS(topo_open(&topo, NULL, &error), &error);
	assert_int_equal(fail_each(bind_to_core, topo, INJECT_MEMORY, ENOMEM, NULL), 1);
	topo_close(topo);
}

static int keep_books(void *arg, struct nvs_error *error)
{
	struct extents *extents = extents_open(1000);
	uint64_t offset, free_before;
	int rc = extents ? 0 : -ENOMEM;

	(void)arg;
	for (unsigned i = 0; i < 100 && !rc; i++)
		rc = extents_alloc(extents, 10, &offset);
	for (uint64_t i = 0; i < 100 && !rc; i += 2) {
		free_before = extents_free_units(extents);
		rc = extents_free(extents, i * 10, 10);
		assert_int_equal(extents_free_units(extents), free_before + (rc ? 0 : 10));
	}
	if (!rc) {
		free_before = extents_free_units(extents);
		rc = extents_prepare(extents, 1000);
		assert_int_equal(extents_free_units(extents), free_before);
	}
	if (extents)
		extents_close(extents);
	error->code = rc;
	snprintf(error->text, sizeof(error->text), "extents return it alone");
	return rc;
}

TEST(extents_without_memory_stay_unchanged)
{
	assert_true(fail_each(keep_books, NULL, INJECT_MEMORY, ENOMEM, NULL) > 2);
}

TEST(every_error_of_the_library_has_a_text_of_its_own)
{
	static const int codes[] = {0,	     -EINVAL,	 -ENOMEM,  -ENOENT,	 -EACCES, -EIO,
				    -ENOSPC, -ENODATA,	 -EBADMSG, -EBUSY,	 -E2BIG,  -ENOBUFS,
				    -ESTALE, -EEXIST,	 -EUCLEAN, -EMEDIUMTYPE, -EAGAIN, -EFBIG,
				    -ERANGE, -ETIMEDOUT, -ENOTSUP};

	for (size_t i = 0; i < COUNT(codes); i++) {
		assert_true(strlen(nvs_strerror(codes[i])) > 3);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(nvs_strerror(codes[i]), nvs_strerror(codes[j]));
	}
	assert_true(strlen(nvs_strerror(-100000)) > 0);
}

EACH_TEST(NULL, cleanup)
