/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scrub finds what the drive has lost before the tensor is needed. While the engine moves
 * nothing, a thread of its own reads the tensors that are on the drive alone, one block at a time,
 * and compares their checksums. A tensor that is written meanwhile is left to the next round: its
 * write does not wait for the read, whose bytes then count for nothing.
 */
#include <sys/mman.h>
#include <xxhash.h>

#include "base/memory/huge_map.h"
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

/* ---- Under the lock ---- */

/* False: the thread must end. */
static bool wait_until_quiet(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;

	while (!scrub->closing && (runs_in_flight(&engine->moves) || engine->commit.writing ||
				   engine->moves.transfers != scrub->transfers)) {
		scrub->transfers = engine->moves.transfers;
		(void)engine_sleep(engine, &scrub->wake, clock_ns() + QUIET_NS);
	}
	return !scrub->closing;
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
	while (scrub->left) {
		struct nvs_tensor *tensor = engine->tensors[--scrub->left];

		if (tensor->content != CONTENT_DRIVE || tensor->io != IO_IDLE || !tensor->nbytes ||
		    tensor->checksum_state == CHECKSUM_NONE)
			continue;
		*next = (struct scrubbed){tensor, tensor->offset, tensor->nbytes,
					  tensor->rest->checksum};
		scrub->tensor = tensor;
		return true;
	}
	return false;
}

/* ---- Tensors and rounds, under the lock but for the I/O ---- */

/* The tensor may be written or removed meanwhile: then there is nothing to compare. */
static void scrub_tensor(struct nvs_engine *engine, const struct scrubbed *scrubbed)
{
	struct scrub *scrub = &engine->scrub;
	struct nvs_error error = {.size = sizeof(error)};
	uint64_t at = 0, error_offset = scrubbed->offset;
	int rc = 0;

	XXH3_64bits_reset(scrub->state);
	while (at < scrubbed->nbytes && !rc && wait_until_quiet(engine) && scrub->tensor) {
		uint64_t nbytes = min_u64(scrubbed->nbytes - at, scrub->block_nbytes);
		struct transfer read = {.file = store_file(engine->store),
					.direction = NVS_READ,
					.data = scrub->block,
					.nbytes = nbytes,
					.offset = scrubbed->offset + at,
					.priority = TRANSFER_USUAL};

		engine_unlock(engine);
		aio_submit_list(engine->aio, scrub->completions, &read);
		while (!completions_take(scrub->completions)) {
			if (completions_take_overdue(scrub->completions)) {
				engine_lock(engine);
				scrub->overdue = true;
				pthread_cond_broadcast(&engine->changed);
				engine_unlock(engine);
			}
			(void)completions_wait(scrub->completions, COMPLETIONS_CALLER, 1,
					       UINT64_MAX);
		}
		rc = read.status;
		if (rc)
			error_offset = read.error_offset;
		else
			XXH3_64bits_update(scrub->state, scrub->block, nbytes);
		engine_lock(engine);
		scrub->overdue = false;
		scrub->nbytes += rc ? 0 : nbytes;
		at += nbytes;
	}
	if (!rc && XXH3_64bits_digest(scrub->state) != scrubbed->checksum)
		rc = -EBADMSG;
	if (rc && scrub->tensor && !scrub->closing) {
		assert(scrubbed->tensor->offset == scrubbed->offset);
		/* The tensor's next read compares its checksum, so no call gets these bytes. */
		if (!engine->verify)
			scrubbed->tensor->checksum_state = CHECKSUM_UNVERIFIED;
		scrub->errors++;
		moving_error(engine, scrubbed->tensor, NVS_READ, rc, error_offset, &error);
		log_later(&engine->log, NVS_LOG_ERROR, "scrub: %s", error.text);
	}
	scrub->tensor = NULL;
}

static void *scrub_main(void *arg)
{
	struct nvs_engine *engine = arg;
	struct scrub *scrub = &engine->scrub;
	struct scrubbed scrubbed;

	take_short_slices();
	engine_lock(engine);
	while (!scrub->closing) {
		scrub->left = engine->ntensors;
		while (wait_until_quiet(engine) && next_tensor(engine, &scrubbed))
			scrub_tensor(engine, &scrubbed);
		if (!scrub->closing)
			scrub->rounds++;
		scrub->next_ns = clock_ns() + PAUSE_NS;
		while (!scrub->closing && clock_ns() < scrub->next_ns)
			(void)engine_sleep(engine, &scrub->wake, scrub->next_ns);
	}
	scrub->ended = true;
	pthread_cond_broadcast(&engine->changed);
	engine_unlock(engine);
	return NULL;
}

/* ---- Starting and ending ---- */

int scrub_start(struct nvs_engine *engine, struct nvs_error *error)
{
	struct scrub *scrub = &engine->scrub;
	int rc;

	if (!scrub->wanted)
		return 0;
	/* Without checksums there is nothing to compare. */
	assert(keeps_sums(engine));
	rc = completions_open(&scrub->completions);
	scrub->block_nbytes = min_u64(engine->aio_config.block_size, BLOCK_MAX);
	scrub->state = XXH3_createState();
	scrub->block = huge_map(scrub->block_nbytes, NULL);
	if (rc || !scrub->state || !scrub->block)
		return error_set(error, -ENOMEM, "out of memory for the scrub");
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
	scrub->started = false;
	return 0;
}

void scrub_close(struct nvs_engine *engine)
{
	struct scrub *scrub = &engine->scrub;

	if (scrub->block)
		munmap(scrub->block, round_to_pages(scrub->block_nbytes));
	XXH3_freeState(scrub->state);
	completions_close(scrub->completions);
	pthread_cond_destroy(&scrub->wake);
}
