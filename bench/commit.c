/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures reads of 4 KiB, one at a time, from a file of the caller on the engine's aio: idle,
 * while the engine commits a kept store, and during a bare fdatasync of as many bytes, which shows
 * how long the drive itself delays reads. The three alternate. Prints JSON.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/measure.h"

#define TENSORS	     4096
#define TENSOR_BYTES (64 * 1024)
#define READ_BYTES   4096
#define FILE_BYTES   (64 * MIB)
#define QUIET_NS     (NS_PER_S / 20)
#define PAGE	     4096

/* A read counts for the phase in which it begins. */
enum phase { PHASE_QUIET, PHASE_COMMIT, PHASE_SYNC, PHASE_UNMEASURED, PHASE_END };

struct commit {
	struct nvs_engine *engine;
	struct nvs_tensor **tensors;
	struct nvs_file *file;
	unsigned char *data; /* memory of one read */
	_Atomic enum phase phase;
	struct samples reads[PHASE_UNMEASURED];
	int bare;		  /* a file of as many bytes as the tensors have */
	unsigned char *bare_data; /* TENSOR_BYTES */
	uint64_t commits, commit_ns, sync_ns;
};

static void transfer(struct commit *commit, enum nvs_direction direction, uint64_t offset)
{
	struct nvs_aio *aio = nvs_engine_aio(commit->engine);
	const struct nvs_transfer transfer = {.size = sizeof(transfer),
					      .file = commit->file,
					      .direction = direction,
					      .data = commit->data,
					      .nbytes = READ_BYTES,
					      .offset = offset};
	struct nvs_request *request;

	must(nvs_aio_submit(aio, &transfer, 1, &request, &bench_error), "nvs_aio_submit");
	must(nvs_aio_wait(aio, &request, 1, -1, &bench_error), "nvs_aio_wait");
	must(nvs_request_close(request), "nvs_request_close");
}

static void open_file(struct commit *commit, const char *path)
{
	if (posix_memalign((void **)&commit->data, PAGE, READ_BYTES))
		fail("no memory");
	memset(commit->data, 1, READ_BYTES);
	must(nvs_file_open(nvs_engine_aio(commit->engine), path,
			   NVS_FILE_WRITE | NVS_FILE_CREATE | NVS_FILE_TRUNCATE, &commit->file,
			   &bench_error),
	     path);
	for (uint64_t at = 0; at < FILE_BYTES; at += READ_BYTES)
		transfer(commit, NVS_WRITE, at);
	must(nvs_file_sync(commit->file, &bench_error), "nvs_file_sync");
}

static void *read_on(void *arg)
{
	struct commit *commit = arg;
	uint64_t random = 1;
	enum phase phase;

	while ((phase = atomic_load(&commit->phase)) != PHASE_END) {
		uint64_t from = now_ns();

		random = random * UINT64_C(6364136223846793005) + 1442695040888963407u;
		transfer(commit, NVS_READ, (random >> 33) % (FILE_BYTES / READ_BYTES) * READ_BYTES);
		if (phase < PHASE_UNMEASURED)
			samples_add(&commit->reads[phase], now_ns() - from);
	}
	return NULL;
}

static void stay_quiet(struct commit *commit)
{
	uint64_t end = now_ns() + QUIET_NS;
	struct timespec pause = {.tv_nsec = QUIET_NS / 10};

	atomic_store(&commit->phase, PHASE_QUIET);
	while (now_ns() < end)
		nanosleep(&pause, NULL);
	atomic_store(&commit->phase, PHASE_UNMEASURED);
}

/* Writes the `dirty` tensors first, so that reads compete with the commit alone. */
static void commit_once(struct commit *commit, size_t dirty)
{
	uint64_t from;

	change_tensors(commit->engine, commit->tensors, dirty, TENSOR_BYTES);
	swap_out_tensors(commit->engine, commit->tensors, dirty);
	wait_for_tensors(commit->engine, commit->tensors, dirty);
	from = now_ns();
	atomic_store(&commit->phase, PHASE_COMMIT);
	must(nvs_engine_commit(commit->engine, &bench_error), "nvs_engine_commit");
	atomic_store(&commit->phase, PHASE_UNMEASURED);
	commit->commit_ns += now_ns() - from;
	commit->commits++;
}

static void write_bare(struct commit *commit, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (pwrite(commit->bare, commit->bare_data, TENSOR_BYTES,
			   (off_t)(i * TENSOR_BYTES)) != TENSOR_BYTES)
			fail("writing the file for fdatasync: %m");
}

static void sync_bare(struct commit *commit)
{
	if (fdatasync(commit->bare))
		fail("fdatasync: %m");
}

static void open_bare(struct commit *commit, const char *path)
{
	char name[4096];

	if (snprintf(name, sizeof(name), "%s.bare", path) >= (int)sizeof(name))
		fail("%s: the path is too long", path);
	if (posix_memalign((void **)&commit->bare_data, PAGE, TENSOR_BYTES))
		fail("no memory");
	memset(commit->bare_data, 1, TENSOR_BYTES);
	commit->bare = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
	if (commit->bare < 0)
		fail("%s: %m", name);
	write_bare(commit, TENSORS);
	sync_bare(commit);
}

/* Like commit_once(), with writes and a sync that nvswap has no part in. */
static void sync_once(struct commit *commit, size_t dirty)
{
	uint64_t from;

	write_bare(commit, dirty);
	from = now_ns();
	atomic_store(&commit->phase, PHASE_SYNC);
	sync_bare(commit);
	atomic_store(&commit->phase, PHASE_UNMEASURED);
	commit->sync_ns += now_ns() - from;
}

static void measure(struct commit *commit, size_t dirty, uint64_t seconds)
{
	uint64_t end = now_ns() + seconds * NS_PER_S;
	pthread_t reader;

	commit_once(commit, TENSORS);
	commit->commits = commit->commit_ns = 0;
	if (pthread_create(&reader, NULL, read_on, commit))
		fail("no thread");
	while (now_ns() < end) {
		stay_quiet(commit);
		commit_once(commit, dirty);
		sync_once(commit, dirty);
	}
	atomic_store(&commit->phase, PHASE_END);
	pthread_join(reader, NULL);
}

static void print_reads(const char *name, struct samples *reads)
{
	printf("\"%s\": {\"reads\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f}, ", name, reads->n,
	       samples_percentile_us(reads, 0.5), samples_percentile_us(reads, 0.99));
}

int main(int argc, char **argv)
{
	struct commit commit = {.phase = PHASE_UNMEASURED};
	struct nvs_config *config;
	size_t dirty;

	if (argc != 5)
		fail("usage: commit CONFIG.json FILE TENSORS SECONDS");
	dirty = number_argument(argv[3]);
	if (dirty > TENSORS)
		fail("at most %d tensors", TENSORS);
	config = open_config(argv[1], NULL);
	must(nvs_engine_open(&commit.engine, config, NVS_OFFLOAD_PARAM, &bench_error),
	     "nvs_engine_open");
	commit.tensors = register_tensors(commit.engine, "tensor", TENSORS, TENSOR_BYTES);
	open_file(&commit, argv[2]);
	open_bare(&commit, argv[2]);
	measure(&commit, dirty, number_argument(argv[4]));
	nvs_file_close(commit.file);
	must(nvs_engine_close(commit.engine, &bench_error), "nvs_engine_close");
	putchar('{');
	print_reads("quiet", &commit.reads[PHASE_QUIET]);
	print_reads("commit", &commit.reads[PHASE_COMMIT]);
	print_reads("fdatasync", &commit.reads[PHASE_SYNC]);
	printf("\"commits\": %" PRIu64 ", \"commit_ms\": %.1f, \"fdatasync_ms\": %.1f}\n",
	       commit.commits, (double)commit.commit_ns / 1e6 / (double)commit.commits,
	       (double)commit.sync_ns / 1e6 / (double)commit.commits);
	for (int i = 0; i < PHASE_UNMEASURED; i++)
		free(commit.reads[i].ns);
	free(commit.data);
	free(commit.bare_data);
	close(commit.bare);
	free(commit.tensors);
	nvs_config_close(config);
	return 0;
}
