/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the swap engine share: places to put stores, engines opened on them, random
 * contents that can be told again from a seed, and an I/O engine that fails or stalls on demand.
 */
#ifndef TESTS_SWAP_FIXTURE_H
#define TESTS_SWAP_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "aio/engine.h"
#include "nvswap.h"
#include "swap/internal.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define KIB	      UINT64_C(1024)
#define MIB	      (KIB * 1024)
#define GIB	      (MIB * 1024)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* For where cmocka can't be: other threads and child processes. */
#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__,           \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* ---- Places ---- */

enum place {
	PLACE_DISK,  /* wherever temporary files are, mostly with O_DIRECT */
	PLACE_TMPFS, /* served buffered */
	PLACE_EXT4,  /* on a loop device of its own, with O_DIRECT; PLACE_EXT4_BYTES long */
	PLACE_COUNT
};
#define PLACE_EXT4_BYTES (192 * MIB)

/* A new empty directory there, or NULL and the reason printed; gone after place_leave_all. */
char *place_make(enum place place);
/* Frees and removes it. */
void place_leave(char *directory);
/* cmocka's group teardown: removes what failed tests left, and unmounts what was mounted. */
int places_leave_all(void **state);

/* ---- Engines ---- */

#define NONE_STAYS UINT64_MAX

struct setup {
	enum place place;
	unsigned npaths;     /* 0: one */
	const char *in;	     /* a directory that is there, instead of a place; one path */
	uint64_t pool_bytes; /* 0: 4 MiB */
	uint64_t max_in_cpu; /* elements; 0: all may stay; NONE_STAYS */
	uint32_t block_size; /* 0: 64 KiB */
	uint32_t queue_depth, thread_count;
	enum nvs_ioengine ioengine;
	enum nvs_device device; /* none: nvme */
	uint64_t stripe_size;
	bool verify, keep;
	struct faults *faults; /* this I/O engine instead of the configuration's */
};

struct fixture {
	struct setup setup;
	char *paths[NVS_PATHS_MAX];
	struct nvs_config config;
	struct nvs_engine *engine;
	struct nvs_error error;
	pthread_mutex_t log_lock;
	char log[8192]; /* what was said, a line each */
};

/* Makes directories and configuration; skips the test where the place is not to be had. */
void fixture_init(struct fixture *fixture, const struct setup *setup);
/* The same and opens the engine. */
void fixture_open(struct fixture *fixture, const struct setup *setup);
/* Opens it (again); the result of nvs_open. */
int fixture_reopen(struct fixture *fixture);
/* Closes the engine, which must succeed. */
void fixture_shut(struct fixture *fixture);
/* Closes what is open and removes the directories. */
void fixture_close(struct fixture *fixture);
/* <path>/nvswap/rank0/<name> of the first path. */
void fixture_store_file(const struct fixture *fixture, const char *name, char path[512]);

#define OPEN(fixture, ...) fixture_open(fixture, &(const struct setup){__VA_ARGS__})
#define INIT(fixture, ...) fixture_init(fixture, &(const struct setup){__VA_ARGS__})

/* The call returned `code`, and its error says so and has `words` in its text. */
void expect_error(struct fixture *fixture, int rc, int code, const char *words);
/* The call returned 0; else prints the error. */
#define OK(fixture, call) expect_ok(fixture, call, __FILE__, __LINE__)
void expect_ok(struct fixture *fixture, int rc, const char *file, int line);

/* ---- Tensors ---- */

/* Registers a tensor of U8. */
struct nvs_tensor *tensor_add(struct fixture *fixture, const char *name, uint64_t nbytes);
/* Registers n of them, named prefix0, prefix1 and so on, in one call. */
void tensors_add(struct fixture *fixture, const char *prefix, const uint64_t *nbytes, size_t n,
		 struct nvs_tensor **tensors);
struct nvs_tensor_info info_of(struct fixture *fixture, struct nvs_tensor *tensor);
/* Its state, dirty flag and uses are these. */
#define STATE(fixture, tensor, state, dirty, uses)                                                 \
	expect_state(fixture, tensor, state, dirty, uses, __FILE__, __LINE__)
void expect_state(struct fixture *fixture, struct nvs_tensor *tensor, enum nvs_state state,
		  bool dirty, uint32_t uses, const char *file, int line);

/* Gives one tensor the contents of `seed`, released dirty; it may stay in the pool or not. */
void tensor_write(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);
/* The same, on the drive and out of the pool. */
void tensor_store(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);
/* Swaps it in, compares and releases. */
void tensor_check(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);

/* ---- Contents ---- */

uint64_t next_random(uint64_t *state);
/* A number below n > 0. */
uint64_t below(uint64_t *state, uint64_t n);
/* Printed; another than the default by TEST_SEED in the environment. */
uint64_t seed_of_run(void);
void fill(void *data, uint64_t nbytes, uint64_t seed);
bool filled(const void *data, uint64_t nbytes, uint64_t seed);

/* ---- Faults ---- */

/*
 * An I/O engine without any threads that does each I/O as it is reaped. Any thread may change the
 * faults at any time.
 */
struct faults {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool held[2];		/* by direction: I/Os stay in flight */
	int fail[2];		/* a negative errno: I/Os come back with it, */
	unsigned fail_times[2]; /* so many of them */
	uint64_t ios[2];	/* that were done or failed */
};
#define FAULTS_NONE                                                                                \
	{                                                                                          \
		.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER             \
	}

extern const struct engine_ops engine_faults;
void faults_hold(struct faults *faults, enum nvs_direction direction, bool held);
void faults_fail(struct faults *faults, enum nvs_direction direction, int status, unsigned times);

#endif
