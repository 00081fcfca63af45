/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the tests of the swap engine: places for stores, engines opened on them, and random
 * contents that a seed reproduces. It includes what they call of libc and of support/.
 */
#ifndef TESTS_SWAP_SWAP_FIXTURE_H
#define TESTS_SWAP_SWAP_FIXTURE_H

#include "aio/engines/engine.h"
#include "config/config.h"
#include "nvswap.h"
#include "support/sim/sim_drive.h"
#include "support/support.h"
#include "support/tests.h"
#include "swap/calls/calls.h"

#define LENGTH(array) COUNT(array)
#define KIB	      UINT64_C(1024)
#define MIB	      (KIB * 1024)
#define GIB	      (MIB * 1024)

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* ---- Places ---- */

enum place {
	PLACE_DISK,  /* /var/tmp, usually with O_DIRECT */
	PLACE_TMPFS, /* buffered I/O */
	PLACE_EXT4,  /* a loop device with O_DIRECT, of PLACE_EXT4_BYTES */
	PLACE_COUNT
};
#define PLACE_EXT4_BYTES (192 * MIB)

/* Makes a new directory there; returns NULL and prints the reason if the place is not available. */
char *place_make(enum place place);
/* Removes the directory and frees its name. */
void place_leave(char *directory);
/* cmocka's group teardown: removes what failed tests left, and unmounts what was mounted. */
int places_leave_all(void **state);
/* Each file of tests that includes this one ends so, unless it says otherwise. */
AROUND_TESTS(NULL, places_leave_all)

/* ---- Engines ---- */

#define NONE_STAYS UINT64_MAX

struct setup {
	enum place place;
	unsigned npaths;     /* 0: one */
	const char *in;	     /* an existing directory instead of a place; one path */
	uint64_t pool_bytes; /* 0: 4 MiB */
	uint64_t max_in_cpu; /* elements; 0: all may stay; NONE_STAYS */
	uint32_t block_size; /* 0: 64 KiB */
	uint32_t queue_depth, thread_count;
	enum nvs_ioengine ioengine;
	enum nvs_device device; /* none: nvme */
	uint64_t stripe_size;
	bool verify, keep;
	bool simulated; /* use fixture->sim instead of the configured I/O engine */
};

struct fixture {
	struct setup setup;
	char *paths[NVS_PATHS_MAX];
	struct nvs_config config;
	struct nvs_engine *engine;
	struct sim *sim; /* the simulated drive, or NULL; lives as long as the fixture */
	struct nvs_error error;
	bool made;   /* by fixture_init(), until fixture_close() */
	pid_t owner; /* the process of the test */
	pthread_mutex_t log_lock;
	char log[8192]; /* all log messages, one a line */
};

/* Creates directories and configuration; skips the test if the place is not available. */
void fixture_init(struct fixture *fixture, const struct setup *setup);
/* The same and opens the engine. */
void fixture_open(struct fixture *fixture, const struct setup *setup);
/* Opens it (again); the result of nvs_engine_open. */
int fixture_reopen(struct fixture *fixture);
/* Closes the engine, which must succeed. */
void fixture_shut(struct fixture *fixture);
/* Closes it, or leaves the store as a crash would, and opens it again, or to read alone. */
void fixture_again(struct fixture *fixture);
void fixture_crash(struct fixture *fixture);
void fixture_read_only(struct fixture *fixture);
/* The engine's counters must equal sums over its tensors. */
void fixture_check(struct fixture *fixture);
/* Closes what is open and removes the directories. */
void fixture_close(struct fixture *fixture);
/* For a file whose tests have one engine at a time: `f`, closed after each test that passes. */
#define ONE_ENGINE                                                                                 \
	static struct fixture one_engine, *const f = &one_engine;                                  \
	static void close_one_engine(void)                                                         \
	{                                                                                          \
		if (f->made)                                                                       \
			fixture_close(f);                                                          \
	}                                                                                          \
	AFTER_SUCCESS(close_one_engine)
struct nvs_engine_stats stats_of(struct fixture *fixture);
/* <path>/nvswap/rank0/<name> of the first path. */
void fixture_store_file(const struct fixture *fixture, const char *name, char path[512]);
/* Flips a bit of a byte on the drive, by its offset in the store; the store has one path. */
void store_flip(const struct fixture *fixture, uint64_t store_offset);
/* The same at that byte of a tensor. */
void tensor_flip(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t at);

#define OPEN(fixture, ...) fixture_open(fixture, &(const struct setup){__VA_ARGS__})
#define INIT(fixture, ...) fixture_init(fixture, &(const struct setup){__VA_ARGS__})
/* OPEN() with a tensor "t" of so many bytes, which it returns. */
#define OPEN_ONE(fixture, nbytes, ...)                                                             \
	(OPEN(fixture, __VA_ARGS__), tensor_add(fixture, "t", nbytes))

/* The call must return `code`; its error must have the same code, and `words` in its text. */
void expect_error(struct fixture *fixture, int rc, int code, const char *words);
/* The same of a call FUNCTION(engine, ..., error). */
#define FAILS(fixture, code, words, function, ...)                                                 \
	expect_error(fixture, function((fixture)->engine, ##__VA_ARGS__, &(fixture)->error), code, \
		     words)
/* The call must return 0; otherwise prints the error, and ends a child process of the test. */
#define OK(fixture, call) expect_ok(fixture, call, __FILE__, __LINE__)
void expect_ok(struct fixture *fixture, int rc, const char *file, int line);

/* ---- Tensors ---- */

/* The initializer of a tensor's description. */
#define U8_TENSOR(text, length)                                                                    \
	{                                                                                          \
		.size = sizeof(struct nvs_tensor_spec), .name = (text), .dtype = NVS_U8,           \
		.numel = (length)                                                                  \
	}
/* Registers a tensor of U8. */
struct nvs_tensor *tensor_add(struct fixture *fixture, const char *name, uint64_t nbytes);
/* Registers n of them, named prefix0, prefix1 and so on, in one call. */
void tensors_add(struct fixture *fixture, const char *prefix, const uint64_t *nbytes, size_t n,
		 struct nvs_tensor **tensors);
struct nvs_tensor_info info_of(struct fixture *fixture, struct nvs_tensor *tensor);
/* The tensor must have this state, dirty flag and number of pins. */
#define STATE(fixture, tensor, state, dirty, uses)                                                 \
	expect_state(fixture, tensor, state, dirty, uses, __FILE__, __LINE__)
void expect_state(struct fixture *fixture, struct nvs_tensor *tensor, enum nvs_tensor_state state,
		  bool dirty, uint32_t uses, const char *file, int line);

/* Swaps them in; they are pinned when it returns. */
void tensors_pin(struct fixture *fixture, struct nvs_tensor **tensors, size_t n);
/* The same, and releases them clean. */
void tensors_load(struct fixture *fixture, struct nvs_tensor **tensors, size_t n);
/* Swaps them out and waits for the writes. */
void tensors_swap_out(struct fixture *fixture, struct nvs_tensor **tensors, size_t n);

/* Gives one tensor the contents of `seed`, released dirty; it may stay in the pool or not. */
void tensor_write(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);
/* The same, on the drive and out of the pool. */
void tensor_store(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);
/* Swaps it in, compares and releases. */
void tensor_compare(struct fixture *fixture, struct nvs_tensor *tensor, uint64_t seed);
/* The same of n tensors, with seeds from this one on. */
void tensors_write(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed);
void tensors_store(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed);
void tensors_compare(struct fixture *fixture, struct nvs_tensor **tensors, size_t n, uint64_t seed);
/* Registers n tensors of that length, prefix0 and so on, and stores them with seeds from 0. */
void tensors_make(struct fixture *fixture, const char *prefix, uint64_t nbytes, size_t n,
		  struct nvs_tensor **tensors);
/* Swaps it out from external memory, or in to it, and waits. */
void tensor_from(struct fixture *fixture, struct nvs_tensor *tensor, const void *data);
void tensor_to(struct fixture *fixture, struct nvs_tensor *tensor, void *data);

/* For reads and writes of ranges: three tensors of awkward lengths, and what each must have. */
#define RANGED	   3
#define RANGED_MAX 700001
extern const uint64_t ranged_lengths[RANGED];
extern char ranged_bytes[RANGED][RANGED_MAX];
/* Registers them as t0, t1 and t2, and swaps them out from `ranged_bytes`. */
void ranged_store(struct fixture *fixture, struct nvs_tensor **tensors);

/* ---- Tensors with one owner each ---- */

/* Waits until every completed run has landed and every message was told. */
void events_await_idle(struct nvs_engine *engine);

/*
 * The functions of pins without the pin: they take each tensor's newest pin, or 0 if it has none.
 * Tests of several owners name the pins themselves.
 */
int sole_swap_in(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 int timeout_ms, struct nvs_error *error);
int sole_pin(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n, int timeout_ms,
	     struct nvs_error *error);
/* Makes one call for each run of tensors with the same pin, each with timeout_ms. */
int sole_wait(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
	      int timeout_ms, struct nvs_error *error);
/* The same; if one tensor is not pinned, a single call, which fails. */
int sole_release(struct nvs_engine *engine, struct nvs_tensor *const *tensors, size_t n,
		 enum nvs_how how, struct nvs_error *error);

/* Whether the call that waits for room is made by the thread that has `here` on its stack. */
static inline bool ticket_is_of(const struct ticket *ticket, const void *here)
{
	uintptr_t a = (uintptr_t)ticket, b = (uintptr_t)here;

	return (a > b ? a - b : b - a) < 256 * KIB;
}

/* ---- Contents ---- */

#define next_random(state) random_next(state)
#define below(state, n)	   random_below(state, n)
/* The seed, which is printed; TEST_SEED in the environment replaces the default. */
uint64_t seed_of_run(void);
void fill(void *data, uint64_t nbytes, uint64_t seed);
bool filled(const void *data, uint64_t nbytes, uint64_t seed);
/* A checksum of names, modes and contents of all files below the path, and, if `times`, of when they
 * were modified and changed, as an opening to write does by reserving space again. The process ends
 * if they can't be listed. */
uint64_t sum_of_files(const char *path, bool times);
void shuffle(struct nvs_tensor **tensors, size_t n, uint64_t *seed);

#endif
