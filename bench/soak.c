/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long run on a real drive: swaps in steps, optimizer steps, commits, and kept stores that are
 * closed and reopened; all data are compared. Between rounds it samples the resources of the
 * process and the stores. The first quarter is the warm-up. After it, open files, threads and the
 * stores' bytes must not change, and resident memory must not exceed the warm-up's maximum by more
 * than RSS_SLACK (not checked under sanitizers, which allocate memory themselves). Prints a table;
 * exits with 1 if one of these grew.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "nvswap.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

#define KIB UINT64_C(1024)
#define MIB (KIB * 1024)

#define TENSORS	    48
#define GROUPS	    3
#define GROUP_NUMEL 60000
#define POOL_NUMEL  (2 * MIB) /* 8 MiB, less than all tensors together */
#define RSS_SLACK   (4 * MIB)
#define SAMPLES_MAX 400
#define TABLE_LINES 24u

struct sample {
	double seconds;
	uint64_t rounds, moved; /* bytes */
	uint64_t rss, files, threads, store;
};

struct soak {
	const char *directory;
	double seconds;
	uint64_t random;
	struct nvs_config *config;
	struct nvs_error error;
	uint64_t rounds, moved;

	struct nvs_engine *engine;
	struct nvs_tensor *tensors[TENSORS];
	uint64_t words[TENSORS];    /* 8-byte words per tensor */
	uint64_t versions[TENSORS]; /* the tensor's first word; 0: no contents yet */

	/* On the drive; and the reference, in host memory. */
	struct nvs_optimizer *optimizer, *reference;
	float *gradients[GROUPS], *found[2];

	struct sample samples[SAMPLES_MAX];
	size_t nsamples;
};

static _Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void fail(const char *format, ...)
{
	va_list args;

	fputs("soak: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(EXIT_FAILURE);
}

static void must(struct soak *soak, int rc, const char *what)
{
	if (rc)
		fail("%s: %s: %s", what, nvs_strerror(rc), soak->error.text);
}

static uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* ---- Resources ---- */

/* The total length of all files below a directory. */
static uint64_t bytes_below(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *directory = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	uint64_t sum = 0;

	if (!directory)
		fail("%s: %s", name, strerror(errno));
	while ((entry = readdir(directory))) {
		struct stat file;

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (fstatat(fd, entry->d_name, &file, AT_SYMLINK_NOFOLLOW))
			fail("%s: %s", entry->d_name, strerror(errno));
		sum += S_ISDIR(file.st_mode) ? bytes_below(fd, entry->d_name)
					     : (uint64_t)file.st_size;
	}
	closedir(directory);
	return sum;
}

static uint64_t open_files(void)
{
	DIR *directory = opendir("/proc/self/fd");
	uint64_t n = 0;

	if (!directory)
		fail("/proc/self/fd: %s", strerror(errno));
	while (readdir(directory))
		n++;
	closedir(directory);
	return n;
}

/* Without the kernel's io_uring threads, which come and go. */
static uint64_t threads(void)
{
	DIR *directory = opendir("/proc/self/task");
	const struct dirent *entry;
	uint64_t n = 0;

	if (!directory)
		fail("/proc/self/task: %s", strerror(errno));
	while ((entry = readdir(directory))) {
		char path[64], name[16] = "";
		FILE *file;

		snprintf(path, sizeof(path), "/proc/self/task/%.20s/comm", entry->d_name);
		file = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!file)
			continue;
		if (fgets(name, sizeof(name), file) && strncmp(name, "iou-", 4) != 0)
			n++;
		fclose(file);
	}
	closedir(directory);
	return n;
}

static uint64_t resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	uint64_t pages = 0;

	if (!file || fscanf(file, "%*u %" SCNu64, &pages) != 1)
		fail("/proc/self/statm can't be read");
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void take_sample(struct soak *soak, double begun)
{
	assert(soak->directory);
	if (soak->nsamples == SAMPLES_MAX)
		return;
	soak->samples[soak->nsamples++] = (struct sample){
		.seconds = now() - begun,
		.rounds = soak->rounds,
		.moved = soak->moved,
		.rss = resident_bytes(),
		.files = open_files(),
		.threads = threads(),
		.store = bytes_below(AT_FDCWD, soak->directory),
	};
}

/* ---- Swaps ---- */

static void open_engine(struct soak *soak)
{
	struct nvs_tensor_spec specs[TENSORS];
	char names[TENSORS][16];

	must(soak, nvs_engine_open(&soak->engine, soak->config, NVS_OFFLOAD_PARAM, &soak->error),
	     "opening the engine");
	for (size_t i = 0; i < TENSORS; i++) {
		snprintf(names[i], sizeof(names[i]), "t%zu", i);
		specs[i] = (struct nvs_tensor_spec){.size = sizeof(struct nvs_tensor_spec),
						    .name = names[i],
						    .dtype = NVS_U64,
						    .numel = soak->words[i]};
	}
	must(soak, nvs_tensor_register(soak->engine, specs, TENSORS, soak->tensors, &soak->error),
	     "registering");
}

static void close_engine(struct soak *soak)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(soak->engine, &stats);
	soak->moved += stats.swapped_in + stats.swapped_out;
	must(soak, nvs_engine_close(soak->engine, &soak->error), "closing the engine");
}

static void compare(const struct soak *soak, size_t i, const uint64_t *data)
{
	for (uint64_t k = 0; k < soak->words[i]; k++)
		if (data[k] != soak->versions[i] + k)
			fail("tensor %zu: word %" PRIu64 " is not what was written", i, k);
}

static void make(struct soak *soak, size_t i, uint64_t *data)
{
	soak->versions[i] = next_random(&soak->random) | 1;
	for (uint64_t k = 0; k < soak->words[i]; k++)
		data[k] = soak->versions[i] + k;
}

static void use_tensor(struct soak *soak, size_t i)
{
	struct nvs_tensor **tensor = &soak->tensors[i];
	bool first = !soak->versions[i], change = first || next_random(&soak->random) % 2;
	uint64_t pin;

	if (first) {
		must(soak, nvs_tensor_pin(soak->engine, tensor, 1, -1, &pin, &soak->error),
		     "leasing");
	} else {
		must(soak, nvs_tensor_swap_in(soak->engine, tensor, 1, -1, &pin, &soak->error),
		     "swapping in");
		must(soak, nvs_tensor_wait(soak->engine, tensor, 1, pin, -1, &soak->error),
		     "waiting");
		compare(soak, i, nvs_tensor_data(*tensor));
	}
	if (change)
		make(soak, i, nvs_tensor_data(*tensor));
	must(soak,
	     nvs_tensor_release(soak->engine, tensor, 1, pin, change ? NVS_DIRTY : NVS_CLEAN,
				&soak->error),
	     "releasing");
}

static void swap_round(struct soak *soak)
{
	must(soak, nvs_engine_step_begin(soak->engine, &soak->error), "beginning a step");
	for (size_t i = 0; i < TENSORS; i++)
		use_tensor(soak, i);
	must(soak, nvs_engine_step_end(soak->engine, NULL, &soak->error), "ending a step");
	if (soak->rounds % 2)
		must(soak, nvs_engine_commit(soak->engine, &soak->error), "committing");
}

/* ---- Optimizer steps ---- */

static struct nvs_optimizer *open_optimizer(struct soak *soak, enum nvs_device device)
{
	struct nvs_config *config;
	struct nvs_group_spec specs[GROUPS];
	struct nvs_optimizer *optimizer;
	char names[GROUPS][16];

	must(soak, nvs_config_copy(soak->config, &config, &soak->error), "copying the settings");
	must(soak, nvs_config_set_number(config, "offload_optimizer.device", device, &soak->error),
	     "the device");
	must(soak,
	     nvs_config_set_number(config, "nvswap.keep", device == NVS_DEVICE_NVME, &soak->error),
	     "keep");
	for (size_t i = 0; i < GROUPS; i++) {
		snprintf(names[i], sizeof(names[i]), "g%zu", i);
		specs[i] = (struct nvs_group_spec){sizeof(struct nvs_group_spec), names[i],
						   GROUP_NUMEL, NVS_F32, NULL};
	}
	must(soak, nvs_optimizer_open(&optimizer, config, specs, GROUPS, NULL, &soak->error),
	     "opening the optimizer");
	nvs_config_close(config);
	return optimizer;
}

static void close_optimizer(struct soak *soak)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	nvs_engine_get_stats(nvs_optimizer_engine(soak->optimizer), &stats);
	soak->moved += stats.swapped_in + stats.swapped_out;
	must(soak, nvs_optimizer_close(soak->optimizer, &soak->error), "closing the optimizer");
}

static void optimizer_step(struct soak *soak, struct nvs_optimizer *optimizer)
{
	for (size_t i = 0; i < GROUPS; i++)
		must(soak,
		     nvs_optimizer_lend_gradients(optimizer, i, NVS_F32, soak->gradients[i],
						  &soak->error),
		     "lending gradients");
	must(soak, nvs_optimizer_step(optimizer, NULL, NULL, &soak->error), "a step");
}

/* Compares all bits. */
static void compare_states(struct soak *soak, size_t group, enum nvs_optimizer_part part)
{
	const void *found, *due;

	must(soak,
	     nvs_optimizer_get(soak->optimizer, group, part, 0, GROUP_NUMEL, soak->found[0],
			       &soak->error),
	     "reading state");
	must(soak,
	     nvs_optimizer_get(soak->reference, group, part, 0, GROUP_NUMEL, soak->found[1],
			       &soak->error),
	     "reading state in memory");
	found = soak->found[0];
	due = soak->found[1];
	if (memcmp(found, due, GROUP_NUMEL * sizeof(float)) != 0)
		fail("group %zu: part %d of the state is not that of the reference", group,
		     (int)part);
}

static void optimizer_round(struct soak *soak)
{
	for (size_t i = 0; i < GROUPS; i++)
		for (uint64_t k = 0; k < GROUP_NUMEL; k++)
			soak->gradients[i][k] =
				(float)(int32_t)(uint32_t)next_random(&soak->random) * 0x1p-31f;
	optimizer_step(soak, soak->optimizer);
	optimizer_step(soak, soak->reference);
	if (soak->rounds % 2)
		must(soak, nvs_optimizer_commit(soak->optimizer, &soak->error), "committing");
	for (int part = NVS_MASTER; part <= NVS_EXP_AVG_SQ; part++)
		compare_states(soak, soak->rounds % GROUPS, (enum nvs_optimizer_part)part);
}

/* ---- The run ---- */

static void configure(struct soak *soak)
{
	static const struct {
		const char *key;
		uint64_t number;
	} settings[] = {
		{"nvswap.verify", true},
		{"nvswap.keep", true},
		{"aio.block_size", 128 * KIB},
		{"offload_param.buffer_count", 1},
		{"offload_param.buffer_size", POOL_NUMEL},
		{"offload_param.max_in_cpu", POOL_NUMEL / 2},
		{"zero_optimization.sub_group_size", GROUP_NUMEL},
		{"offload_optimizer.buffer_count", 1},
		{"nvswap.optimizer_threads", 1},
	};

	must(soak, nvs_config_open(&soak->config, &soak->error), "the configuration");
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		must(soak,
		     nvs_config_set_number(soak->config, settings[i].key, settings[i].number,
					   &soak->error),
		     settings[i].key);
	for (enum nvs_block block = NVS_OFFLOAD_PARAM; block <= NVS_OFFLOAD_OPTIMIZER; block++)
		must(soak,
		     nvs_config_set_paths(soak->config, block, &soak->directory, 1, &soak->error),
		     "the directory");
}

static void make_data(struct soak *soak)
{
	for (size_t i = 0; i < TENSORS; i++)
		soak->words[i] = 1 + next_random(&soak->random) % (64 * KIB);
	for (size_t i = 0; i < GROUPS + 2; i++) {
		float *data = calloc(GROUP_NUMEL, sizeof(*data));

		if (!data)
			fail("out of memory");
		if (i < GROUPS)
			soak->gradients[i] = data;
		else
			soak->found[i - GROUPS] = data;
	}
}

#define ROUNDS_OPEN 2 /* rounds between reopening the stores */

static void soak_for(struct soak *soak)
{
	double begun = now(), interval = soak->seconds / 100, next = 0;

	soak->reference = open_optimizer(soak, NVS_DEVICE_CPU);
	while (now() - begun < soak->seconds || soak->nsamples < 6) {
		open_engine(soak);
		soak->optimizer = open_optimizer(soak, NVS_DEVICE_NVME);
		for (int i = 0; i < ROUNDS_OPEN; i++, soak->rounds++) {
			swap_round(soak);
			optimizer_round(soak);
		}
		/* At the same point of each round, so that the same objects are open. */
		if (now() - begun >= next) {
			take_sample(soak, begun);
			next += interval;
		}
		close_optimizer(soak);
		close_engine(soak);
	}
	must(soak, nvs_optimizer_close(soak->reference, &soak->error), "closing the reference");
}

static bool is_flat(const struct soak *soak)
{
	size_t warm = soak->nsamples / 4;
	uint64_t rss = 0;
	bool flat = true;

	for (size_t i = 0; i <= warm; i++)
		if (soak->samples[i].rss > rss)
			rss = soak->samples[i].rss;
	for (size_t i = warm + 1; i < soak->nsamples; i++) {
		const struct sample *sample = &soak->samples[i], *first = &soak->samples[warm];

		flat &= sample->files == first->files && sample->threads == first->threads &&
			sample->store == first->store &&
			(SANITIZED || sample->rss <= rss + RSS_SLACK);
	}
	return flat;
}

static void print_table(const struct soak *soak)
{
	size_t step = (soak->nsamples + TABLE_LINES - 1) / TABLE_LINES;

	printf("%9s %8s %9s %9s %7s %8s %10s\n", "seconds", "rounds", "GiB moved", "RSS KiB",
	       "files", "threads", "store KiB");
	for (size_t i = 0; i < soak->nsamples; i++) {
		const struct sample *sample = &soak->samples[i];

		if (i % step && i + 1 < soak->nsamples)
			continue;
		printf("%9.1f %8" PRIu64 " %9.2f %9" PRIu64 " %7" PRIu64 " %8" PRIu64 " %10" PRIu64
		       "%s\n",
		       sample->seconds, sample->rounds, (double)sample->moved / 0x1p30,
		       sample->rss / KIB, sample->files, sample->threads, sample->store / KIB,
		       i < soak->nsamples / 4 ? "  warming up" : "");
	}
}

static const char usage[] = "usage: soak --directory DIR [--minutes N | --seconds N] [--seed N]\n"
			    "Leaves a kept store in DIR, which should be empty.\n";

int main(int argc, char **argv)
{
	static const struct option options[] = {{"directory", required_argument, NULL, 'd'},
						{"minutes", required_argument, NULL, 'm'},
						{"seconds", required_argument, NULL, 's'},
						{"seed", required_argument, NULL, 'r'},
						{NULL, 0, NULL, 0}};
	static struct soak soak = {.seconds = 180, .error = {.size = sizeof(soak.error)}};
	uint64_t seed = (uint64_t)time(NULL);
	int option;
	bool flat;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			soak.directory = optarg;
		else if (option == 'm')
			soak.seconds = strtod(optarg, NULL) * 60;
		else if (option == 's')
			soak.seconds = strtod(optarg, NULL);
		else if (option == 'r')
			seed = strtoull(optarg, NULL, 10);
		else
			soak.directory = NULL;
	}
	if (!soak.directory || optind != argc) {
		fputs(usage, stderr);
		return 2;
	}
	printf("seed %" PRIu64 "\n", seed);
	soak.random = seed;
	configure(&soak);
	make_data(&soak);
	soak_for(&soak);
	print_table(&soak);
	flat = is_flat(&soak);
	puts(flat ? "flat" : "it grows");
	for (size_t i = 0; i < GROUPS; i++)
		free(soak.gradients[i]);
	free(soak.found[0]);
	free(soak.found[1]);
	nvs_config_close(soak.config);
	return flat ? EXIT_SUCCESS : EXIT_FAILURE;
}
