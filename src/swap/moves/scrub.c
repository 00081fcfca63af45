/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrub finds what the drive has lost before the tensor is needed. While the engine moves
 * nothing, a thread of its own reads the tensors that are on the drive alone, one block at a time,
 * and compares their checksums. A tensor that is written meanwhile is left to the next round: its
 * write does not wait for the read, whose bytes then count for nothing.
 */
#include <assert.h>
#include <errno.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "aio/completions.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/memory/huge_map.h"
#include "base/state_checks.h"
#include "base/threads/slice.h"
#include "base/threads/thread.h"
#include "swap/moves/moves.h"

/* A call that begins during an I/O of the scrub waits for no more than this. */
#define BLOCK_MAX (UINT64_C(1) << 20)
/* From the end of a round to the next. */
#define PAUSE_NS (UINT64_C(3600) * 1000000000)
/* The engine has moved nothing for so long. A program that moves one tensor after another is not
 * slowed by reads between them. */
#define QUIET_NS (UINT64_C(20) * 1000000)

/* What is read, as it was when that began. */
struct scrubbed {
	struct nvs_tensor *tensor; /* valid under the lock while scrub->tensor is the same */
	uint64_t offset, nbytes, checksum;
};

static void scrub_check(const struct nvs_engine *engine)
{
	const struct scrub *scrub = &engine->scrub;

	if (!STATE_CHECKS)
		return;
	lock_check(engine);
	assert(scrub->wanted && !scrub->ended);
	assert(!scrub->tensor || (scrub->tensor->engine == engine && scrub->tensor->nbytes));
	assert(!scrub->tensor || scrub->tensor->io != IO_WRITING);
}

/* ---- Under the lock ---- */

static bool is_quiet(const struct nvs_engine *engine)
{
	assert(engine->scrub.transfers <= engine->transfers);
	return !engine->inflight[NVS_READ] && !engine->inflight[NVS_WRITE] && !engine->committing &&
	       engine->transfers == engine->scrub.transfers;
}

/* False: the thread must end. */
static bool wait_until_quiet(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;

	scrub_check(engine);
	while (!scrub->closing && !is_quiet(engine)) {
		scrub->transfers = engine->transfers;
		(void)engine_sleep(engine, &scrub->wake, clock_ns() + QUIET_NS);
	}
	return !scrub->closing;
}

static bool is_due(const struct nvs_tensor *tensor)
{
	assert(tensor->registration != REGISTRATION_NEW);
	return tensor->content == CONTENT_DRIVE && tensor->io == IO_IDLE && tensor->nbytes &&
	       tensor->checksum_state != CHECKSUM_NONE;
}

/*
 * The next tensor of the round; false: there is none. A tensor that is removed is replaced by the
 * last one (table_remove), so the round goes from the last to the first and misses none.
 */
static bool next_tensor(struct nvs_engine *engine, struct scrubbed *next)
{
	struct scrub *scrub = &engine->scrub;

	if (scrub->left > engine->ntensors)
		scrub->left = engine->ntensors;
	assert(!scrub->tensor);
	while (scrub->left) {
		struct nvs_tensor *tensor = engine->tensors[--scrub->left];

		table_check(engine, tensor);
		if (!is_due(tensor))
			continue;
		*next = (struct scrubbed){tensor, tensor->offset, tensor->nbytes,
					  tensor->rest->checksum};
		scrub->tensor = tensor;
		scrub_check(engine);
		return true;
	}
	return false;
}

/* The next read of the tensor compares its checksum, so no call gets these bytes. */
static void report(struct nvs_engine *engine, const struct scrubbed *scrubbed, int status,
		   uint64_t offset)
{
	struct nvs_error error = {.size = sizeof(error)};

	assert(status < 0 && engine->scrub.tensor == scrubbed->tensor);
	assert(on_drive(scrubbed->tensor->content));
	assert(scrubbed->tensor->offset == scrubbed->offset);
	assert(scrubbed->tensor->checksum_state != CHECKSUM_NONE);
	if (!engine->verify)
		scrubbed->tensor->checksum_state = CHECKSUM_UNVERIFIED;
	engine->scrub.errors++;
	read_error(engine, scrubbed->tensor, status, offset, &error);
	say_later(engine, NVS_LOG_ERROR, "scrub: %s", error.text);
}

/* ---- Without the lock ---- */

static void note_overdue(struct nvs_engine *engine)
{
	engine_lock(engine);
	scrub_check(engine);
	assert(engine->scrub.started);
	engine->scrub.overdue = true;
	pthread_cond_broadcast(&engine->changed);
	engine_unlock(engine);
}

/* Reads into the block; 0, or the status of the transfer and in *error_offset where it failed. */
static int read_block(struct nvs_engine *engine, uint64_t offset, uint64_t nbytes,
		      uint64_t *error_offset)
{
	struct scrub *scrub = &engine->scrub;
	struct transfer read = {.file = store_file(engine->store),
				.direction = NVS_READ,
				.data = scrub->block,
				.nbytes = nbytes,
				.offset = offset,
				.priority = TRANSFER_USUAL};

	unlocked_check(engine);
	assert(nbytes && nbytes <= scrub->block_nbytes);
	assert(nbytes <= UINT64_MAX - offset);
	aio_submit_list(engine->aio, scrub->completions, &read);
	while (!completions_take(scrub->completions)) {
		if (completions_take_overdue(scrub->completions))
			note_overdue(engine);
		(void)completions_wait(scrub->completions, COMPLETIONS_CALLER, 1, UINT64_MAX);
	}
	assert(read.state.phase == TRANSFER_COMPLETED && read.status <= 0);
	if (read.status)
		*error_offset = read.error_offset;
	return read.status;
}

/* ---- Tensors and rounds, under the lock but for the I/O ---- */

/* Returns 0 or the error of a read. The tensor may have been written since. */
static int sum_tensor(struct nvs_engine *engine, const struct scrubbed *scrubbed,
		      uint64_t *checksum, uint64_t *error_offset)
{
	struct scrub *scrub = &engine->scrub;
	uint64_t at = 0;
	int rc = 0;

	assert(scrubbed->nbytes && !scrub->overdue);
	XXH3_64bits_reset(scrub->state);
	while (at < scrubbed->nbytes && !rc && wait_until_quiet(engine) && scrub->tensor) {
		uint64_t left = scrubbed->nbytes - at;
		uint64_t nbytes = left < scrub->block_nbytes ? left : scrub->block_nbytes;

		engine_unlock(engine);
		rc = read_block(engine, scrubbed->offset + at, nbytes, error_offset);
		if (!rc)
			XXH3_64bits_update(scrub->state, scrub->block, nbytes);
		engine_lock(engine);
		scrub->overdue = false;
		scrub->nbytes += rc ? 0 : nbytes;
		at += nbytes;
	}
	assert(rc <= 0 && at <= scrubbed->nbytes && !scrub->overdue);
	*checksum = XXH3_64bits_digest(scrub->state);
	return rc;
}

static void scrub_tensor(struct nvs_engine *engine, const struct scrubbed *scrubbed)
{
	struct scrub *scrub = &engine->scrub;
	uint64_t checksum, offset = scrubbed->offset;
	int rc = sum_tensor(engine, scrubbed, &checksum, &offset);

	scrub_check(engine);
	assert(!scrub->tensor || scrub->tensor == scrubbed->tensor);
	if (!rc && checksum != scrubbed->checksum)
		rc = -EBADMSG;
	if (rc && scrub->tensor && !scrub->closing)
		report(engine, scrubbed, rc, offset);
	scrub->tensor = NULL;
}

static void scrub_round(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;
	struct scrubbed scrubbed;

	assert(!scrub->tensor);
	scrub_check(engine);
	scrub->left = engine->ntensors;
	while (wait_until_quiet(engine) && next_tensor(engine, &scrubbed))
		scrub_tensor(engine, &scrubbed);
	assert(scrub->closing || !scrub->left);
	if (!scrub->closing)
		scrub->rounds++;
}

static void *scrub_main(void *arg)
{
	struct nvs_engine *engine = arg;
	struct scrub *scrub = &engine->scrub;

	take_short_slices();
	engine_lock(engine);
	while (!scrub->closing) {
		scrub_round(engine);
		scrub->next_ns = clock_ns() + PAUSE_NS;
		while (!scrub->closing && clock_ns() < scrub->next_ns)
			(void)engine_sleep(engine, &scrub->wake, scrub->next_ns);
	}
	scrub_check(engine);
	assert(!scrub->tensor && !scrub->overdue);
	scrub->ended = true;
	pthread_cond_broadcast(&engine->changed);
	engine_unlock(engine);
	return NULL;
}

/* ---- Starting and ending ---- */

void scrub_init(struct scrub *scrub, bool wanted)
{
	*scrub = (struct scrub){.wanted = wanted};
	pthread_cond_init(&scrub->wake, NULL);
}

static int allocate(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;
	int rc;

	assert(!scrub->completions && !scrub->state && !scrub->block);
	assert(engine->aio_config.block_size);
	rc = completions_open(&scrub->completions);
	scrub->block_nbytes = engine->aio_config.block_size < BLOCK_MAX
				      ? engine->aio_config.block_size
				      : BLOCK_MAX;
	scrub->state = XXH3_createState();
	scrub->block = huge_map(scrub->block_nbytes, NULL);
	return rc || !scrub->state || !scrub->block ? -ENOMEM : 0;
}

int scrub_start(struct nvs_engine *engine, struct nvs_error *error)
{
	struct scrub *scrub = &engine->scrub;
	int rc;

	if (!scrub->wanted)
		return 0;
	unlocked_check(engine);
	assert(!scrub->started && !scrub->ended);
	/* Without checksums there is nothing to compare. */
	assert(keeps_sums(engine));
	rc = allocate(engine);
	if (rc)
		return error_set(error, rc, "out of memory for the scrub");
	rc = thread_start(&scrub->thread, scrub_main, engine);
	if (rc)
		return error_set(error, rc, "can't start the scrub's thread: %s",
				 thread_strerror(rc));
	scrub->started = true;
	return 0;
}

int scrub_stop(struct nvs_engine *engine, struct nvs_error *error)
{
	struct scrub *scrub = &engine->scrub;
	bool ended;

	if (!scrub->started)
		return 0;
	engine_lock(engine);
	scrub->closing = true;
	pthread_cond_signal(&scrub->wake);
	while (!scrub->ended && !scrub->overdue)
		(void)engine_sleep(engine, &engine->changed, UINT64_MAX);
	ended = scrub->ended;
	engine_unlock(engine);
	if (!ended)
		return error_set(error, -ETIMEDOUT,
				 "a read of the scrub has not completed: the drive hangs");
	pthread_join(scrub->thread, NULL);
	assert(scrub->ended && !scrub->tensor);
	scrub->started = false;
	return 0;
}

void scrub_close(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;

	assert(!scrub->started && !scrub->tensor && !scrub->overdue);
	assert(!scrub->block || scrub->block_nbytes);
	if (scrub->block)
		munmap(scrub->block, round_to_pages(scrub->block_nbytes));
	XXH3_freeState(scrub->state);
	completions_close(scrub->completions);
	pthread_cond_destroy(&scrub->wake);
}
