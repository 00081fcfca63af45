/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places, engines and contents for the tests of the swap engine. Everything is created in private
 * directories and removed; mounts are in a mount namespace of this process and end with it.
 */
#include "swap/swap_fixture.h"
#include "store/member/member.h"

#include <ftw.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <xxhash.h>

/* ---- Places ---- */

/* Directories to remove at the end, even if a test failed. */
static char *made[64];

static const char *ext4_root, *no_ext4;

int places_leave_all(void **state)
{
	for (size_t i = 0; i < LENGTH(made); i++)
		place_leave(made[i]);
	ext4_root = no_ext4 = NULL;
	return cleanup_all(state);
}

/* One for all tests of a file. */
static const char *make_ext4(void)
{
	const char *device = loop_device(PLACE_EXT4_BYTES, 512, &no_ext4);

	if (device)
		ext4_root = file_system_on(device, "ext4", "-O ^has_journal", NULL, &no_ext4);
	keep_made();
	return ext4_root;
}

static const char *root_of(enum place place, const char **reason)
{
	struct statfs fs;

	if (place == PLACE_DISK)
		return "/var/tmp";
	if (place == PLACE_EXT4) {
		const char *root = ext4_root || no_ext4 ? ext4_root : make_ext4();

		*reason = no_ext4;
		return root;
	}
	*reason = "there is no tmpfs at /dev/shm";
	return !statfs("/dev/shm", &fs) && fs.f_type == TMPFS_MAGIC ? "/dev/shm" : NULL;
}

char *place_make(enum place place)
{
	const char *reason = NULL, *root = root_of(place, &reason);
	char *path;

	if (!root) {
		print_message("%s\n", reason);
		return NULL;
	}
	if (asprintf(&path, "%s/nvswap-test-XXXXXX", root) < 0)
		return NULL;
	assert_non_null(mkdtemp(path));
	for (size_t i = 0; i < LENGTH(made); i++)
		if (!made[i]) {
			made[i] = path;
			break;
		}
	return path;
}

void place_leave(char *directory)
{
	if (!directory)
		return;
	(void)remove_tree(directory);
	for (size_t i = 0; i < LENGTH(made); i++)
		if (made[i] == directory)
			made[i] = NULL;
	free(directory);
}

/* ---- Engines ---- */

static void take_log(void *arg, enum nvs_log_level level, const char *text)
{
	struct fixture *fixture = arg;
	size_t used;

	(void)level;
	pthread_mutex_lock(&fixture->log_lock);
	used = strlen(fixture->log);
	snprintf(fixture->log + used, sizeof(fixture->log) - used, "%s\n", text);
	pthread_mutex_unlock(&fixture->log_lock);
}

static void configure(struct fixture *fixture)
{
	const struct setup *setup = &fixture->setup;
	struct nvs_config *config = &fixture->config;

	config_init(config);
	config->log = (struct nvs_log){take_log, fixture};
	config->aio.block_size = setup->block_size ? setup->block_size : 64 * KIB;
	config->aio.queue_depth = setup->queue_depth ? setup->queue_depth : 8;
	config->aio.thread_count = setup->thread_count ? setup->thread_count : 1;
	config->aio.ioengine = setup->ioengine;
	config->param_dtype = NVS_F32;
	config->offload[NVS_OFFLOAD_PARAM].buffer_count = 1;
	config->offload[NVS_OFFLOAD_PARAM].buffer_size =
		(setup->pool_bytes ? setup->pool_bytes : 4 * MIB) / 4;
	config->offload[NVS_OFFLOAD_PARAM].max_in_cpu = setup->max_in_cpu == NONE_STAYS ? 0
							: setup->max_in_cpu ? setup->max_in_cpu
									    : UINT64_MAX;
	config->verify = setup->verify;
	config->keep = setup->keep;
	config->stripe_size = setup->stripe_size;
	if (setup->device == NVS_DEVICE_CPU)
		config->offload[NVS_OFFLOAD_PARAM].device = NVS_DEVICE_CPU;
	else
		OK(fixture, nvs_config_set_paths(config, NVS_OFFLOAD_PARAM,
						 (const char *const *)(uintptr_t)fixture->paths,
						 setup->npaths, &fixture->error));
}

void fixture_init(struct fixture *fixture, const struct setup *setup)
{
	memset(fixture, 0, sizeof(*fixture));
	fixture->error.size = sizeof(fixture->error);
	pthread_mutex_init(&fixture->log_lock, NULL);
	fixture->setup = *setup;
	fixture->owner = getpid();
	if (setup->simulated)
		fixture->sim = sim_open(&(const struct sim_drive){0});
	if (!setup->npaths)
		fixture->setup.npaths = 1;
	for (unsigned i = 0; i < fixture->setup.npaths; i++) {
		fixture->paths[i] = setup->in ? strdup(setup->in) : place_make(setup->place);
		if (!fixture->paths[i])
			skip();
	}
	configure(fixture);
	fixture->made = true;
}

int fixture_reopen(struct fixture *fixture)
{
	fixture->error = (struct nvs_error){.size = sizeof(fixture->error)};
	if (fixture->sim)
		return engine_open_with(&fixture->engine, &fixture->config, NVS_OFFLOAD_PARAM,
					&engine_sim, fixture->sim, &fixture->error);
	return nvs_engine_open(&fixture->engine, &fixture->config, NVS_OFFLOAD_PARAM,
			       &fixture->error);
}

void fixture_open(struct fixture *fixture, const struct setup *setup)
{
	int rc;

	fixture_init(fixture, setup);
	rc = fixture_reopen(fixture);
	if (rc == -ENOTSUP && setup->ioengine) {
		print_message("%s\n", fixture->error.text);
		fixture_close(fixture);
		skip();
	}
	OK(fixture, rc);
}

struct nvs_engine_stats stats_of(struct fixture *fixture)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(fixture->engine, &stats);
	return stats;
}

void fixture_shut(struct fixture *fixture)
{
	struct nvs_engine *engine = fixture->engine;

	fixture->engine = NULL;
	OK(fixture, nvs_engine_close(engine, &fixture->error));
}

void fixture_again(struct fixture *fixture)
{
	fixture_shut(fixture);
	OK(fixture, fixture_reopen(fixture));
}

void fixture_read_only(struct fixture *fixture)
{
	fixture->config.read_only = true;
	fixture_again(fixture);
}

void fixture_crash(struct fixture *fixture)
{
	engine_abandon(fixture->engine);
	fixture_again(fixture);
}

void fixture_check(struct fixture *fixture)
{
	engine_lock(fixture->engine);
	engine_check(fixture->engine);
	engine_unlock(fixture->engine);
}

void fixture_close(struct fixture *fixture)
{
	if (fixture->engine)
		fixture_shut(fixture);
	if (fixture->sim)
		sim_close(fixture->sim);
	config_free(&fixture->config);
	for (unsigned i = 0; i < fixture->setup.npaths; i++) {
		if (fixture->setup.in)
			free(fixture->paths[i]);
		else
			place_leave(fixture->paths[i]);
	}
	pthread_mutex_destroy(&fixture->log_lock);
	fixture->made = false;
}

void fixture_store_file(const struct fixture *fixture, const char *name, char path[512])
{
	snprintf(path, 512, "%s/nvswap/rank%" PRIu32 "/%s", fixture->paths[0], fixture->config.rank,
		 name);
}

void store_flip(const struct fixture *fixture, uint64_t store_offset)
{
	off_t offset = (off_t)(LABEL_AREA_BYTES + store_offset);
	char directory[512], path[512], byte;
	int fd;

	fixture_store_file(fixture, ".", directory);
	data_path(directory, path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, offset), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
}

void tensor_flip(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t at)
{
	store_flip(fixture, info_of(fixture, tensor).store_offset + at);
}

void expect_error(struct fixture *fixture, int rc, int code, const char *words)
{
	if (rc != code)
		print_error("%s instead of %s: %s\n", nvs_strerror(rc), nvs_strerror(code),
			    fixture->error.text);
	assert_int_equal(rc, code);
	assert_int_equal(fixture->error.code, code);
	if (!strstr(fixture->error.text, words))
		print_error("\"%s\" is not in \"%s\"\n", words, fixture->error.text);
	assert_non_null(strstr(fixture->error.text, words));
	fixture->error = (struct nvs_error){.size = sizeof(fixture->error)};
}

void expect_ok(struct fixture *fixture, int rc, const char *file, int line)
{
	if (rc)
		print_error("%s:%d: %s: %s\n", file, line, nvs_strerror(rc), fixture->error.text);
	if (rc && fixture->owner != getpid())
		abort();
	_assert_int_equal(rc, 0, file, line);
}

/* ---- Tensors ---- */

void tensors_add(struct fixture *fixture, const char *prefix, const uint64_t *nbytes, size_t n,
		 struct nvs_tensor **tensors)
{
	struct nvs_tensor_spec *specs = calloc(n, sizeof(*specs));
	char(*names)[48] = calloc(n, sizeof(*names));
	uint64_t(*shapes)[2] = calloc(n, sizeof(*shapes));

	assert_true(specs && names && shapes);
	for (size_t i = 0; i < n; i++) {
		snprintf(names[i], sizeof(names[i]), "%.20s%zu", prefix, i);
		specs[i] = (struct nvs_tensor_spec)U8_TENSOR(names[i], nbytes[i]);
		/* Some have more than one dimension. */
		if (i % 4 == 1) {
			memcpy(shapes[i], (uint64_t[]){1, nbytes[i]}, sizeof(shapes[i]));
			specs[i].shape = shapes[i];
			specs[i].ndim = 2;
		}
	}
	OK(fixture, nvs_tensor_register(fixture->engine, specs, n, tensors, &fixture->error));
	free(specs);
	free(names);
	free(shapes);
}

struct nvs_tensor *tensor_add(struct fixture *fixture, const char *name, uint64_t nbytes)
{
	struct nvs_tensor_spec spec = U8_TENSOR(name, nbytes);
	struct nvs_tensor *tensor;

	OK(fixture, nvs_tensor_register(fixture->engine, &spec, 1, &tensor, &fixture->error));
	return tensor;
}

struct nvs_tensor_info info_of(struct fixture *fixture, struct nvs_tensor *tensor)
{
	struct nvs_tensor_info info = {.size = sizeof(info)};

	nvs_tensor_get_info(fixture->engine, tensor, &info);
	return info;
}

void expect_state(struct fixture *fixture, struct nvs_tensor *tensor, enum nvs_tensor_state state,
		  bool dirty, uint32_t uses, const char *file, int line)
{
	struct nvs_tensor_info info = info_of(fixture, tensor);

	_assert_string_equal(nvs_tensor_state_name(info.state), nvs_tensor_state_name(state), file,
			     line);
	_assert_int_equal(info.dirty, dirty, file, line);
	_assert_int_equal(info.pins, uses, file, line);
}

void tensors_pin(struct fixture *fixture, struct nvs_tensor **tensors, size_t n)
{
	OK(fixture, sole_swap_in(fixture->engine, tensors, n, 60000, &fixture->error));
	OK(fixture, sole_wait(fixture->engine, tensors, n, -1, &fixture->error));
}

void tensors_load(struct fixture *fixture, struct nvs_tensor **tensors, size_t n)
{
	tensors_pin(fixture, tensors, n);
	OK(fixture, sole_release(fixture->engine, tensors, n, NVS_CLEAN, &fixture->error));
}

void tensors_swap_out(struct fixture *fixture, struct nvs_tensor **tensors, size_t n)
{
	OK(fixture, nvs_tensor_swap_out(fixture->engine, tensors, n, &fixture->error));
	OK(fixture, sole_wait(fixture->engine, tensors, n, -1, &fixture->error));
}

void tensor_write(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed)
{
	uint64_t nbytes = info_of(fixture, tensor).nbytes;

	OK(fixture, sole_pin(fixture->engine, &tensor, 1, -1, &fixture->error));
	fill(nvs_tensor_data(tensor), nbytes, seed);
	OK(fixture, sole_release(fixture->engine, &tensor, 1, NVS_DIRTY, &fixture->error));
}

void tensor_store(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed)
{
	tensor_write(fixture, tensor, seed);
	tensors_swap_out(fixture, &tensor, 1);
}

void tensor_compare(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed)
{
	tensors_pin(fixture, &tensor, 1);
	assert_true(filled(nvs_tensor_data(tensor), info_of(fixture, tensor).nbytes, seed));
	OK(fixture, sole_release(fixture->engine, &tensor, 1, NVS_CLEAN, &fixture->error));
}

void tensors_write(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		tensor_write(fixture, tensors[i], seed + i);
}

void tensors_store(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		tensor_store(fixture, tensors[i], seed + i);
}

void tensors_compare(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		tensor_compare(fixture, tensors[i], seed + i);
}

void tensors_make(struct fixture *fixture, const char *prefix, uint64_t nbytes, size_t n,
		  struct nvs_tensor **tensors)
{
	uint64_t *lengths = calloc(n, sizeof(*lengths));

	assert_non_null(lengths);
	for (size_t i = 0; i < n; i++)
		lengths[i] = nbytes;
	tensors_add(fixture, prefix, lengths, n, tensors);
	tensors_store(fixture, tensors, n, 0);
	free(lengths);
}

void tensor_from(struct fixture *fixture, struct nvs_tensor *tensor, const void *data)
{
	OK(fixture, nvs_tensor_swap_out_from(fixture->engine, &tensor, &data, 1, &fixture->error));
	OK(fixture, sole_wait(fixture->engine, &tensor, 1, -1, &fixture->error));
}

void tensor_to(struct fixture *fixture, struct nvs_tensor *tensor, void *data)
{
	OK(fixture, nvs_tensor_swap_in_to(fixture->engine, &tensor, &data, 1, &fixture->error));
	OK(fixture, sole_wait(fixture->engine, &tensor, 1, -1, &fixture->error));
}

/* ---- Contents ---- */

const uint64_t ranged_lengths[RANGED] = {1, 70001, RANGED_MAX};
char ranged_bytes[RANGED][RANGED_MAX];

void ranged_store(struct fixture *fixture, struct nvs_tensor **tensors)
{
	tensors_add(fixture, "t", ranged_lengths, RANGED, tensors);
	for (size_t i = 0; i < RANGED; i++) {
		fill(ranged_bytes[i], ranged_lengths[i], i + 1);
		tensor_from(fixture, tensors[i], ranged_bytes[i]);
	}
}

uint64_t seed_of_run(void)
{
	const char *text = getenv("TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : 20240229;

	print_message("seed %" PRIu64 "\n", seed);
	return seed;
}

void fill(void *data, uint64_t nbytes, uint64_t seed)
{
	random_fill(&seed, data, nbytes);
}

bool filled(const void *data, uint64_t nbytes, uint64_t seed)
{
	const char *bytes = data;

	for (uint64_t i = 0; i < nbytes; i += 8) {
		uint64_t word = next_random(&seed);

		if (memcmp(bytes + i, &word, nbytes - i < 8 ? nbytes - i : 8) != 0)
			return false;
	}
	return true;
}

void shuffle(struct nvs_tensor **tensors, size_t n, uint64_t *seed)
{
	for (size_t i = n; i > 1; i--) {
		size_t k = below(seed, i);
		struct nvs_tensor *tensor = tensors[k];

		tensors[k] = tensors[i - 1];
		tensors[i - 1] = tensor;
	}
}

/* ---- Tensors with one owner each ---- */

static uint64_t newest_pin(struct nvs_engine *engine, struct nvs_tensor *tensor)
{
	uint64_t pins[64];
	size_t n;

	engine_lock(engine);
	n = pins_list(tensor, pins, 64);
	engine_unlock(engine);
	return n ? pins[n - 1] : 0;
}

/* The number of leading tensors with the same pin, which is stored in *pin. */
static size_t pinned_together(struct nvs_engine *engine, struct nvs_tensor *const *tensors,
			      size_t n, uint64_t *pin)
{
	size_t i = 1;

	*pin = newest_pin(engine, tensors[0]);
	while (i < n && newest_pin(engine, tensors[i]) == *pin)
		i++;
	return i;
}

int sole_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 int timeout_ms, struct nvs_error *error)
{
	uint64_t pin;

	return nvs_tensor_swap_in(engine, tensors, n, timeout_ms, &pin, error);
}

int sole_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, int timeout_ms,
	     struct nvs_error *error)
{
	uint64_t pin;

	return nvs_tensor_pin(engine, tensors, n, timeout_ms, &pin, error);
}

#define MUST_WAIT_AGAIN(rc) ((rc) == -EAGAIN || (rc) == -ETIMEDOUT)

/* As in one call, a transfer still in flight takes precedence over a failed one. */
int sole_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, struct nvs_error *error)
{
	struct nvs_error last = {.size = sizeof(last)};
	int rc = 0;

	for (size_t i = 0, k; i < n && !MUST_WAIT_AGAIN(rc); i += k) {
		uint64_t pin;
		int failure;

		k = pinned_together(engine, tensors + i, n - i, &pin);
		failure = nvs_tensor_wait(engine, tensors + i, k, pin, timeout_ms, &last);
		if (!failure || (rc && !MUST_WAIT_AGAIN(failure)))
			continue;
		rc = failure;
		if (error)
			*error = last;
	}
	return rc;
}

int sole_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 enum nvs_how how, struct nvs_error *error)
{
	uint64_t pin;
	size_t k;
	int rc = 0;

	for (size_t i = 0; i < n; i++)
		if (!newest_pin(engine, tensors[i]))
			return nvs_tensor_release(engine, tensors, n,
						  newest_pin(engine, tensors[0]), how, error);
	for (size_t i = 0; i < n && !rc; i += k) {
		k = pinned_together(engine, tensors + i, n - i, &pin);
		rc = nvs_tensor_release(engine, tensors + i, k, pin, how, error);
	}
	return rc;
}

/* ---- Files ---- */

static XXH3_state_t *sum;
static bool sum_has_times;

static int add_to_sum(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	static uint8_t bytes[64 * 1024];
	int fd = type == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	ssize_t n;

	(void)ftw;
	XXH3_64bits_update(sum, path, strlen(path));
	XXH3_64bits_update(sum, &st->st_mode, sizeof(st->st_mode));
	if (sum_has_times) {
		XXH3_64bits_update(sum, &st->st_mtim, sizeof(st->st_mtim));
		XXH3_64bits_update(sum, &st->st_ctim, sizeof(st->st_ctim));
	}
	while (fd >= 0 && (n = read(fd, bytes, sizeof(bytes))) > 0)
		XXH3_64bits_update(sum, bytes, (size_t)n);
	if (fd >= 0)
		close(fd);
	return 0;
}

uint64_t sum_of_files(const char *path, bool times)
{
	uint64_t result;

	sum_has_times = times;
	sum = XXH3_createState();
	XXH3_64bits_reset(sum);
	if (nftw(path, add_to_sum, 16, FTW_PHYS)) {
		perror(path);
		abort();
	}
	result = XXH3_64bits_digest(sum);
	XXH3_freeState(sum);
	return result;
}

void events_await_idle(struct nvs_engine *engine)
{
	if (!engine->events.started)
		assert_int_equal(events_start(engine), 0);
	/* Its last round does all that has come up. */
	events_stop(engine);
	assert_int_equal(events_start(engine), 0);
	log_await_told(&engine->log);
}
