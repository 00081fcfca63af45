/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of `nvswap store`: kept stores made with the public interface, the command's
 * exit status and output, and bytes changed on the drive.
 */
#ifndef TESTS_CLI_STORE_COMMAND_FIXTURE_H
#define TESTS_CLI_STORE_COMMAND_FIXTURE_H

#include "nvswap.h"
#include "support/support.h"

#define NUMEL 5000 /* of each tensor */

static struct nvs_error error = {.size = sizeof(error)};
#define DO(call) SUCCEEDS(call, &error)

static char output[65536]; /* of the last command, standard error included */

/* The paths of a store as the elements of a JSON list. */
static inline struct nvs_engine *open_engine(const char *paths, unsigned rank, bool keep)
{
	struct nvs_config *config;
	struct nvs_engine *engine = NULL;
	char text[2048];

	snprintf(text, sizeof(text),
		 "{\"offload_param\": {\"device\": \"nvme\", \"buffer_size\": 65536, "
		 "\"nvme_path\": [%s]}, \"aio\": {\"block_size\": 4096, \"queue_depth\": 4}, "
		 "\"nvswap\": {\"keep\": %s, \"rank\": %u, \"stripe_size\": 8192}}",
		 paths, keep ? "true" : "false", rank);
	DO(nvs_config_open(&config, &error));
	DO(nvs_config_parse(config, text, strlen(text), "test", &error));
	DO(nvs_engine_open(&engine, config, NVS_OFFLOAD_PARAM, &error));
	nvs_config_close(config);
	return engine;
}

/* The tensor t0, t1, ..., registered unless it is there. */
static inline struct nvs_tensor *tensor_of(struct nvs_engine *engine, unsigned i)
{
	char name[16];
	struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = name, .dtype = NVS_F32, .numel = NUMEL};
	struct nvs_tensor *tensor;

	snprintf(name, sizeof(name), "t%u", i);
	tensor = nvs_tensor_find(engine, name);
	if (!tensor)
		DO(nvs_tensor_register(engine, &spec, 1, &tensor, &error));
	return tensor;
}

/* Changes the first `n` tensors. */
static inline void write_tensors(struct nvs_engine *engine, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct nvs_tensor *tensor = tensor_of(engine, i);
		uint64_t pin;

		DO(nvs_tensor_pin(engine, &tensor, 1, -1, &pin, &error));
		memset(nvs_tensor_data(tensor), (int)(i + 1), NUMEL * 4);
		DO(nvs_tensor_release(engine, &tensor, 1, pin, NVS_DIRTY, &error));
		DO(nvs_tensor_swap_out(engine, &tensor, 1, &error));
	}
}

/* A store of `n` tensors with one commit. */
static inline void make_store(const char *paths, unsigned rank, unsigned n)
{
	struct nvs_engine *engine = open_engine(paths, rank, true);

	write_tensors(engine, n);
	DO(nvs_engine_close(engine, &error));
}

static inline const char *quoted(const char *path)
{
	static char text[4][512];
	static unsigned next;
	char *into = text[next++ % 4];

	snprintf(into, 512, "\"%s\"", path);
	return into;
}

static inline const char *quoted_pair(const char *a, const char *b)
{
	static char text[1024];

	snprintf(text, sizeof(text), "%s, %s", quoted(a), quoted(b));
	return text;
}

/* The store at the path that this one points to. */
static inline struct nvs_store_place place_at(const char *const *path)
{
	return (struct nvs_store_place){sizeof(struct nvs_store_place), path, 1, 0, false};
}

/* Where the bytes are of the first tensor that has this in its name. */
static inline uint64_t offset_of(const char *path, bool optimizer, const char *name)
{
	struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_store_place place = place_at(&path);
	struct nvs_store *store;

	place.optimizer = optimizer;
	DO(nvs_store_open(&place, 0, &store, &error));
	for (size_t i = 0; !tensor.name || !strstr(tensor.name, name); i++)
		assert_int_equal(nvs_store_get_tensor(store, i, &tensor), 0);
	nvs_store_close(store);
	return tensor.offset;
}

/* Runs "nvswap store ARGUMENTS"; returns its exit status. */
static inline int store_command(const char *format, ...) __attribute__((format(printf, 1, 2)));
static inline int store_command(const char *format, ...)
{
	char arguments[2048], line[4096], self[1024] = "", *end;
	va_list args;
	FILE *pipe;

	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	end = strstr(self, "/tests/");
	assert_non_null(end);
	*end = 0;
	va_start(args, format);
	vsnprintf(arguments, sizeof(arguments), format, args);
	va_end(args);
	snprintf(line, sizeof(line), "'%s/nvswap' store %s 2>&1", self, arguments);
	pipe = popen(line, "r");
	assert_non_null(pipe);
	output[fread(output, 1, sizeof(output) - 1, pipe)] = 0;
	return WEXITSTATUS(pclose(pipe));
}

/* What the command says of a store that this process has open. */
static inline const char *in_use(void)
{
	static char who[64];

	snprintf(who, sizeof(who), "in use by process %d (%.15s)", (int)getpid(),
		 program_invocation_short_name);
	return who;
}

#define EXITS(status, ...)                                                                         \
	do {                                                                                       \
		int exits_with = store_command(__VA_ARGS__);                                       \
		if (exits_with != (status))                                                        \
			fail_msg("exit status %d: %s", exits_with, output);                        \
	} while (0)
/* And that its output has the text. */
#define SAYS(status, text, ...)                                                                    \
	do {                                                                                       \
		EXITS(status, __VA_ARGS__);                                                        \
		assert_says(output, text);                                                         \
	} while (0)

/* Changes a byte of a file. */
static inline void damage(const char *path, uint64_t offset)
{
	int fd = open(path, O_RDWR);
	char byte;

	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= 0x55;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	assert_int_equal(fsync(fd) | close(fd), 0);
}

/* How often the output has a text. */
static inline unsigned count_of(const char *text)
{
	unsigned n = 0;

	for (const char *at = output; (at = strstr(at, text)); at += strlen(text))
		n++;
	return n;
}

#endif
