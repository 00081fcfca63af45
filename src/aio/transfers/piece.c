/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Splits transfers into I/Os and evaluates their results. The aligned middle of a transfer uses
 * direct I/O on the caller's memory. Unaligned bytes are read in whole units through the bounce
 * buffer, and written durably through the page cache, because a read-modify-write could undo a
 * concurrent write to the same unit. Users of a padded file own whole units, so it needs no page
 * cache.
 *
 * A page that a transfer covers only in part is never written directly, unless the transfers
 * themselves overlap: two transfers that share a page never undo each other's bytes, and each gets
 * its own error. Bounce buffers have 8 slots of 256 KiB a worker, 64 among all workers, so such
 * I/Os are no longer than that.
 */
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "aio/internal.h"

void bounce_check(const struct bounce *bounce)
{
	if (!STATE_CHECKS)
		return;
	assert(bounce->slots <= BOUNCE_SLOTS_MAX && bounce->nfree <= bounce->slots);
	assert(!bounce->data || bounce->slots);
	assert(!bounce->nfree || bounce->free[bounce->nfree - 1] < bounce->slots);
}

int bounce_open(struct bounce *bounce, uint32_t queue_depth, unsigned nworkers)
{
	uint32_t share = BOUNCE_SLOTS_ALL / nworkers;

	bounce->slots = (uint32_t)min_u64(min_u64(queue_depth, BOUNCE_SLOTS_MAX),
					  share ? share : 1);
	bounce->data = mmap(NULL, bounce_bytes(bounce), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bounce->data == MAP_FAILED) {
		bounce->data = NULL;
		return -ENOMEM;
	}
	/* Copy-on-write after a fork could separate the buffer from the pages under DMA. */
	(void)madvise(bounce->data, bounce_bytes(bounce), MADV_DONTFORK);
	/* Only an optimization, so failure is harmless. */
	(void)mlock(bounce->data, bounce_bytes(bounce));
	for (bounce->nfree = 0; bounce->nfree < bounce->slots; bounce->nfree++)
		bounce->free[bounce->nfree] = bounce->nfree;
	return 0;
}

void bounce_close(struct bounce *bounce)
{
	assert(!bounce->data || bounce->nfree == bounce->slots);
	if (bounce->data)
		munmap(bounce->data, bounce_bytes(bounce));
	bounce->data = NULL;
}

uint64_t bounce_bytes(const struct bounce *bounce)
{
	return (uint64_t)bounce->slots * BOUNCE_SLOT_BYTES;
}

/* Bytes from `data` to the end of the slot's memory; 0: it has none there. */
static uint64_t bytes_in(const struct ring_buffer *buffer, const char *data)
{
	if (!buffer->data || data < buffer->data || data >= buffer->data + buffer->nbytes)
		return 0;
	return (uint64_t)(buffer->data + buffer->nbytes - data);
}

/*
 * The slot of the worker's ring that contains `data`, and the bytes from there to the slot's end;
 * -1: none. The aio's table does not decide this, because the ring may lag behind it.
 */
static int slot_of(const struct worker *worker, const char *data, uint64_t *nbytes)
{
	for (unsigned i = 0; i < worker->nbuffers; i++) {
		*nbytes = bytes_in(&worker->buffers[i], data);
		if (*nbytes)
			return (int)i;
	}
	return -1;
}

static void use_file(struct piece *piece, const struct location *place, uint64_t nbytes,
		     bool direct)
{
	const struct file_member *member = place->member;

	assert(nbytes && nbytes <= place->nbytes && nbytes <= UINT32_MAX);
	piece->io.fd = direct ? member->direct_fd : member->fd;
	piece->io.file_slot = direct ? member->direct_slot : member->slot;
	piece->io.offset = place->offset;
	piece->io.data = piece->user;
	piece->io.nbytes = (uint32_t)nbytes;
	piece->useful = (uint32_t)nbytes;
	piece->align = 1;
}

/* Transfers the whole units around `nbytes` at the place through the bounce buffer. */
static bool use_bounce(struct worker *worker, struct piece *piece, const struct location *place,
		       uint64_t nbytes, uint32_t unit)
{
	struct bounce *bounce = &worker->bounce;
	uint64_t first = align_down(place->offset, unit);
	uint64_t end = min_u64(align_up(place->offset + nbytes, unit), first + BOUNCE_SLOT_BYTES);
	uint64_t in_region;

	bounce_check(bounce);
	if (!bounce->nfree)
		return false;
	piece->bounce = (int)bounce->free[--bounce->nfree];
	use_file(piece, place, min_u64(nbytes, end - place->offset), piece->transfer->file->direct);
	piece->skip = (uint32_t)(place->offset - first);
	piece->align = unit;
	piece->io.data = bounce->data + (size_t)piece->bounce * BOUNCE_SLOT_BYTES;
	piece->io.offset = first;
	piece->io.nbytes = (uint32_t)(end - first);
	piece->io.buffer_slot = slot_of(worker, piece->io.data, &in_region);
	assert(piece->skip + piece->useful <= piece->io.nbytes);
	assert(end > first && end - first <= BOUNCE_SLOT_BYTES && (end - first) % unit == 0);
	return true;
}

bool piece_cut(struct worker *worker, struct transfer *transfer, struct piece *piece)
{
	const struct nvs_file *file = transfer->file;
	uint64_t position = transfer->offset + transfer->state.claimed;
	struct location place = file_place(file, position);
	uint64_t rest = min_u64(transfer->nbytes - transfer->state.claimed, place.nbytes), left;
	uint32_t unit = transfer->direction == NVS_READ ? file->offset_align : file->write_unit;
	/* A block smaller than the unit could never use direct I/O. */
	uint32_t block = worker->aio->config.block_size;
	bool write = transfer->direction == NVS_WRITE;

	assert(rest && transfer->state.phase == TRANSFER_QUEUED && !transfer->status);
	file_check(file);
	block = block < unit ? unit : (uint32_t)align_down(block, unit);
	left = min_u64(rest, block);
	*piece = (struct piece){
		.io = {.index = piece->io.index, .write = write, .buffer_slot = -1, .owner = piece},
		.transfer = transfer,
		.position = position,
		.user = (char *)transfer->data + transfer->state.claimed,
		.bounce = -1,
		.member = (unsigned)(place.member - file->members),
		.priority = transfer->priority,
	};

	uint64_t odd = place.offset % unit, head = odd ? unit - odd : 0;
	/* Memory is not aligned where the file's next unit begins: it takes no unit directly. */
	bool scattered = transfer->segments ||
			 ((uintptr_t)piece->user + head) % file->mem_align != 0;

	assert(!write || file->writable);
	assert(!write || !file->direct || !odd || (!file->padded && !file->units));
	assert(!write || !file->direct || !file->units || left >= unit);
	assert(!write || !transfer->segments);
	if (!file->direct && !transfer->segments) {
		use_file(piece, &place, left, false);
	} else if (write && (odd || (left < unit && !file->padded))) {
		use_file(piece, &place, min_u64(left, unit - odd), false);
		piece->io.sync = true;
	} else if (odd || left < unit || scattered) {
		if (odd && !scattered && rest >= head + unit)
			left = head;
		else if (write && left > unit)
			left = align_down(left, unit);
		if (!use_bounce(worker, piece, &place, left, unit))
			return false;
	} else {
		uint64_t in_region = 0;
		int slot = slot_of(worker, piece->user, &in_region);

		left = align_down(left, unit);
		if (slot >= 0 && align_down(in_region, file->offset_align)) {
			left = min_u64(left, align_down(in_region, file->offset_align));
			piece->io.buffer_slot = slot;
		}
		use_file(piece, &place, left, true);
		piece->align = file->offset_align;
	}
	assert(piece->useful && piece->io.nbytes);
	transfer->state.claimed += piece->useful;
	transfer->state.pending++;
	return true;
}

/* Between two submissions of a piece the ring may have given its slot to other memory. Without a
 * slot, the I/O uses the plain address or descriptor. */
void piece_choose_slots(const struct worker *worker, struct piece *piece)
{
	struct io *io = &piece->io;
	uint64_t left;

	if (io->file_slot >= 0 && worker->files[io->file_slot] != io->fd)
		io->file_slot = -1;
	if (io->buffer_slot < 0 ||
	    bytes_in(&worker->buffers[io->buffer_slot], io->data) >= io->nbytes)
		return;
	io->buffer_slot = slot_of(worker, io->data, &left);
	if (io->buffer_slot >= 0 && left < io->nbytes)
		io->buffer_slot = -1;
}

void piece_begin(struct piece *piece)
{
	if (piece->bounce < 0 || !piece->io.write)
		return;
	assert(!piece->skip && !piece->done);
	memcpy(piece->io.data, piece->user, piece->useful);
	memset((char *)piece->io.data + piece->useful, 0, piece->io.nbytes - piece->useful);
}

/* Without the lock, so it reads what is constant while the transfer is in flight. */
void piece_check(const struct worker *worker, const struct piece *piece)
{
	if (!STATE_CHECKS)
		return;

	const struct transfer *transfer = piece->transfer;
	const struct io *io = &piece->io;
	const char *bounce = worker->bounce.data + (size_t)piece->bounce * BOUNCE_SLOT_BYTES;

	assert(io->owner == piece && io->index < worker->aio->config.queue_depth);
	assert(io->nbytes && io->write == (transfer->direction == NVS_WRITE));
	assert(io->offset % piece->align == 0 && io->nbytes % piece->align == 0);
	assert(piece->useful && piece->position >= transfer->offset);
	assert(piece->position + piece->useful <= transfer->offset + transfer->nbytes);
	assert(piece->member < transfer->file->nmembers);
	assert(piece->user == (char *)transfer->data + (piece->position - transfer->offset));
	/* The memory under DMA is the caller's useful bytes, or the piece's own bounce slot. */
	if (piece->bounce < 0) {
		assert(!piece->skip && piece->done + io->nbytes == piece->useful);
		assert(io->data == piece->user + piece->done);
	} else {
		assert((uint32_t)piece->bounce < worker->bounce.slots);
		assert(io->data == bounce + piece->done);
		assert(piece->done + io->nbytes <= BOUNCE_SLOT_BYTES);
	}
}

/* False: this was tried too often, and the piece fails with `status`. */
static bool try_again(struct piece *piece, int status)
{
	assert(!piece->status && piece->retries <= RETRIES_MAX);
	if (++piece->retries <= RETRIES_MAX)
		return true;
	piece->status = status;
	return false;
}

/* Evaluates the result; prepares the remainder of a short I/O, or another attempt. */
static bool has_ended(struct piece *piece)
{
	struct io *io = &piece->io;
	int result = io->result;
	uint32_t progress;

	if (result == -EINTR || result == -EAGAIN)
		return !try_again(piece, -EIO);
	if (result < 0) {
		struct rlimit limit;
		struct stat st;

		/* The kernel cuts a write at the limit on the size of files, and refuses what is
		 * left of a direct one as unaligned. */
		if (io->write && result == -EINVAL && !getrlimit(RLIMIT_FSIZE, &limit) &&
		    limit.rlim_cur < io->offset + io->nbytes && !fstat(io->fd, &st) &&
		    S_ISREG(st.st_mode))
			result = -EFBIG;
		piece->status = ended_with(result);
		return true;
	}
	if (io->write ? (uint32_t)result == io->nbytes
		      : piece->done + (uint32_t)result >= piece->skip + piece->useful)
		return true;
	if (!result && !io->write) {
		piece->status = -ENODATA;
		return true;
	}
	/* Less than a unit: the file ends there, or its unit is smaller than the one known. */
	progress = (uint32_t)align_down((uint32_t)result, piece->align);
	if (!progress)
		return !try_again(piece, io->write ? -EIO : -ENODATA);
	assert(progress < io->nbytes);
	piece->retries = 0;
	piece->done += progress;
	io->data = (char *)io->data + progress;
	io->offset += progress;
	io->nbytes -= progress;
	return false;
}

void piece_report(const struct piece *piece)
{
	struct transfer *transfer = piece->transfer;
	uint64_t at = piece->position, end = piece->position - piece->skip + piece->done;

	if (!piece->status)
		return;
	/* A read that crosses the end of the file fails there, and others where they begin. */
	if (piece->status == -ENODATA && piece->io.result >= 0) {
		end += (uint32_t)piece->io.result;
		at = end > at ? end : at;
	}
	if (transfer->status && transfer->error_offset <= at)
		return;
	transfer->status = piece->status;
	transfer->error_offset = at;
}

static void give_bounce(struct worker *worker, struct piece *piece)
{
	assert(piece->bounce < 0 || worker->bounce.nfree < worker->bounce.slots);
	if (piece->bounce >= 0)
		worker->bounce.free[worker->bounce.nfree++] = (uint32_t)piece->bounce;
	bounce_check(&worker->bounce);
}

bool piece_finish(struct worker *worker, struct piece *piece)
{
	piece_check(worker, piece);
	assert(piece->io.result <= (int64_t)piece->io.nbytes);
	if (!has_ended(piece))
		return false;
	if (piece->bounce >= 0 && !piece->status && !piece->io.write) {
		const char *read = worker->bounce.data + (size_t)piece->bounce * BOUNCE_SLOT_BYTES +
				   piece->skip;
		const struct segment *s = piece->transfer->segments;
		uint64_t begin = piece->position, end = begin + piece->useful;

		if (!s)
			memcpy(piece->user, read, piece->useful);
		/* Copies what was read of each segment to it. */
		for (; s && s->offset < end; s = s->next) {
			uint64_t from = max_u64(s->offset, begin);
			uint64_t to = min_u64(s->offset + s->nbytes, end);

			if (from < to)
				memcpy(s->data + (from - s->offset), read + (from - begin),
				       to - from);
		}
	}
	give_bounce(worker, piece);
	return true;
}
