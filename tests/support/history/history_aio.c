/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of an aio's requests: a few files, whose bytes the model knows but for those of failed
 * writes, and a few places in memory, each for one request at a time. Requests in flight do not
 * overlap in a file, so the model knows at submission what a read must find.
 */
#include "aio/aio.h"
#include "support/history/history.h"
#include "swap/swap_fixture.h"

#include <poll.h>

#define FILES	    3
#define FILE_BYTES  (96u << 10)
#define SLOTS	    12
#define SLOT_BYTES  (32u << 10)
#define GUARD_BYTES 512u
#define SLOT_ROOM   (SLOT_BYTES + 2 * (size_t)GUARD_BYTES)
#define GUARD	    0x5a
#define BATCH	    4

enum slot_state {
	SLOT_FREE,
	SLOT_SUBMITTED, /* in flight, or completed and not seen */
	SLOT_SEEN,	/* a call has waited for it or taken it; it is not closed */
};

struct slot {
	enum slot_state state;
	struct nvs_request *request; /* NULL: submitted without an array */
	struct file *file;
	enum nvs_direction direction;
	uint64_t offset, nbytes;
	unsigned char *data;
	unsigned version; /* of the bytes that a write has */
};

struct file {
	char path[4096];
	struct nvs_file *handle;
	bool writable;
	unsigned char bytes[FILE_BYTES];
	bool unknown[FILE_BYTES]; /* a write of the byte failed */
};

struct world {
	struct history_drive drive;
	struct nvs_aio *aio;
	struct nvs_error error;
	struct file files[FILES];
	struct slot slots[SLOTS];
	unsigned char *memory; /* of all slots; page-aligned */
	bool registered;
	uint64_t random;
	unsigned versions;
	uint64_t
		submitted; /* since the last nvs_aio_wait_all that succeeded or returned a status */
	bool failed;	   /* one of those failed, as far as the model has seen */
	int eventfd;
};

static bool one_in(struct world *w, uint64_t n)
{
	return below(&w->random, n) == 0;
}

static unsigned char byte_of(unsigned version, uint64_t i)
{
	return (unsigned char)(version * 37 + i * 11 + (i >> 8));
}

static unsigned char *slot_memory(struct world *w, const struct slot *slot)
{
	return w->memory + (size_t)(slot - w->slots) * SLOT_ROOM;
}

/* ---- What a request did ---- */

static void note_written(const struct slot *slot, bool known)
{
	for (uint64_t i = 0; i < slot->nbytes; i++) {
		slot->file->unknown[slot->offset + i] = !known;
		slot->file->bytes[slot->offset + i] = byte_of(slot->version, i);
	}
}

static bool past_the_end(const struct slot *slot)
{
	return slot->offset + slot->nbytes > FILE_BYTES;
}

/* The request has completed with this status. */
static void completed(struct world *w, const struct slot *slot, int status)
{
	const unsigned char *begin = slot_memory(w, slot);
	const unsigned char *end = begin + SLOT_ROOM;

	if (status) {
		HOLDS(history_drive_caused(&w->drive, status) ||
		      (status == -ENODATA && past_the_end(slot)));
		history_counts()->errors++;
		w->failed = true;
	} else {
		HOLDS(!past_the_end(slot));
	}
	for (const unsigned char *at = begin; at < end; at++)
		if ((at < slot->data || at >= slot->data + slot->nbytes) && *at != GUARD)
			history_fail(__FILE__, __LINE__,
				     "a byte outside of the memory has changed");
	if (slot->direction == NVS_WRITE)
		note_written(slot, !status);
	for (uint64_t i = 0; i < slot->nbytes && slot->direction == NVS_READ && !status; i++)
		if (!slot->file->unknown[slot->offset + i] &&
		    slot->data[i] != slot->file->bytes[slot->offset + i])
			history_fail(__FILE__, __LINE__, "byte %" PRIu64 " was read wrong",
				     slot->offset + i);
}

/* A call has seen the slot's request complete. */
static void seen(struct world *w, struct slot *slot)
{
	HOLDS(slot->state == SLOT_SUBMITTED && slot->request);
	completed(w, slot, nvs_request_status(slot->request, &w->error));
	slot->state = SLOT_SEEN;
}

static bool is_in_flight(const struct slot *slot)
{
	return nvs_request_status(slot->request, NULL) == -EINPROGRESS;
}

/* ---- Submitting ---- */

/* Chooses a run of a file and of memory; often aligned, and sometimes beyond the file's end. */
static bool choose_run(struct world *w, struct slot *slot)
{
	uint64_t align = one_in(w, 2) ? 4096 : 1;

	slot->file = &w->files[below(&w->random, FILES)];
	slot->direction = slot->file->writable && one_in(w, 2) ? NVS_WRITE : NVS_READ;
	slot->nbytes = below(&w->random, SLOT_BYTES + 1) / align * align;
	slot->offset = below(&w->random, FILE_BYTES) / align * align;
	if (past_the_end(slot) && (slot->direction == NVS_WRITE || !one_in(w, 8)))
		slot->offset = FILE_BYTES - slot->nbytes;
	slot->data = slot_memory(w, slot) + GUARD_BYTES;
	if (align == 1 && slot->nbytes < SLOT_BYTES)
		slot->data += below(&w->random, SLOT_BYTES - slot->nbytes);
	for (const struct slot *s = w->slots; s < w->slots + SLOTS; s++)
		if (s != slot && s->state == SLOT_SUBMITTED && s->file == slot->file &&
		    s->offset < slot->offset + slot->nbytes && slot->offset < s->offset + s->nbytes)
			return false;
	return slot->file->handle;
}

static void fill_slot(struct world *w, struct slot *slot)
{
	memset(slot_memory(w, slot), GUARD, SLOT_ROOM);
	slot->version = ++w->versions;
	for (uint64_t i = 0; i < slot->nbytes && slot->direction == NVS_WRITE; i++)
		slot->data[i] = byte_of(slot->version, i);
}

static void op_submit(struct world *w)
{
	struct nvs_transfer transfers[BATCH];
	struct nvs_request *requests[BATCH];
	struct slot *chosen[BATCH];
	size_t n = 0, most = 1 + below(&w->random, BATCH);
	bool detached;

	for (struct slot *s = w->slots; s < w->slots + SLOTS && n < most; s++) {
		if (s->state != SLOT_FREE || !choose_run(w, s))
			continue;
		fill_slot(w, s);
		/* Those chosen later must not overlap it. */
		s->state = SLOT_SUBMITTED;
		s->request = NULL;
		transfers[n] = (struct nvs_transfer){sizeof(*transfers),
						     s->file->handle,
						     s->direction,
						     s->data,
						     s->nbytes,
						     s->offset,
						     s};
		chosen[n++] = s;
	}
	detached = one_in(w, 4);
	history_log("submit%s", detached ? " without an array" : "");
	for (size_t i = 0; i < n; i++)
		history_log_more(" %s %" PRIu64 "+%" PRIu64 " of %zu",
				 chosen[i]->direction == NVS_READ ? "read" : "write",
				 chosen[i]->offset, chosen[i]->nbytes,
				 (size_t)(chosen[i]->file - w->files));
	history_log_more("\n");
	HOLDS(nvs_aio_submit(w->aio, transfers, n, detached ? NULL : requests, &w->error) == 0);
	for (size_t i = 0; i < n && !detached; i++) {
		chosen[i]->request = requests[i];
		HOLDS(nvs_request_user(requests[i]) == chosen[i]);
	}
	w->submitted += n;
}

static void op_pread(struct world *w)
{
	struct slot *slot = &w->slots[below(&w->random, SLOTS)];

	if (slot->state != SLOT_FREE || !choose_run(w, slot))
		return;
	fill_slot(w, slot);
	history_log("%s %" PRIu64 "+%" PRIu64 "\n",
		    slot->direction == NVS_READ ? "pread" : "pwrite", slot->offset, slot->nbytes);
	if (slot->direction == NVS_READ)
		HOLDS(!nvs_aio_pread(w->aio, slot->file->handle, slot->data, slot->nbytes,
				     slot->offset, &slot->request, &w->error));
	else
		HOLDS(!nvs_aio_pwrite(w->aio, slot->file->handle, slot->data, slot->nbytes,
				      slot->offset, &slot->request, &w->error));
	slot->state = SLOT_SUBMITTED;
	w->submitted++;
}

/* ---- Waiting ---- */

static size_t choose_submitted(struct world *w, struct slot *chosen[SLOTS],
			       struct nvs_request *requests[SLOTS])
{
	size_t n = 0;

	for (struct slot *slot = w->slots; slot < w->slots + SLOTS; slot++)
		if (slot->state == SLOT_SUBMITTED && slot->request && !one_in(w, 3)) {
			requests[n] = slot->request;
			chosen[n++] = slot;
		}
	return n;
}

/* Nothing completes on a drive that is held. */
static int choose_timeout(struct world *w)
{
	return one_in(w, 3) ? 0 : w->drive.held ? 5 : -1;
}

static void check_timed_out(int rc, int timeout_ms)
{
	HOLDS(timeout_ms >= 0 && rc == (timeout_ms ? -ETIMEDOUT : -EAGAIN));
}

static void op_wait(struct world *w)
{
	struct nvs_request *requests[SLOTS];
	struct slot *chosen[SLOTS];
	size_t n = choose_submitted(w, chosen, requests);
	int timeout_ms = choose_timeout(w), status = 0, rc;
	bool any_in_flight = false;

	rc = nvs_aio_wait(w->aio, requests, n, timeout_ms, &w->error);
	history_log("wait for %zu: %s\n", n, nvs_strerror(rc));
	for (size_t i = 0; i < n; i++)
		any_in_flight |= is_in_flight(chosen[i]);
	if (any_in_flight) {
		check_timed_out(rc, timeout_ms);
		return;
	}
	/* They may have completed after the wait gave up. */
	if (timeout_ms >= 0 && (rc == -EAGAIN || rc == -ETIMEDOUT))
		return;
	for (size_t i = 0; i < n; i++) {
		int one = nvs_request_status(requests[i], NULL);

		status = status ? status : one;
		seen(w, chosen[i]);
	}
	HOLDS(rc == status);
}

static void op_wait_any(struct world *w)
{
	struct nvs_request *requests[SLOTS];
	struct slot *chosen[SLOTS];
	size_t n = choose_submitted(w, chosen, requests), index;
	int timeout_ms = choose_timeout(w), rc;

	if (!n)
		return;
	rc = nvs_aio_wait_any(w->aio, requests, n, timeout_ms, &index, &w->error);
	history_log("wait for any of %zu: %zu, %s\n", n, index, nvs_strerror(rc));
	if (index == n) {
		check_timed_out(rc, timeout_ms);
		return;
	}
	HOLDS(!is_in_flight(chosen[index]) && rc == nvs_request_status(requests[index], NULL));
	seen(w, chosen[index]);
}

/* Ends a request that was submitted without an array, and that nvs_aio_wait_all has closed. */
static void closed(struct world *w, struct slot *slot, bool all_well)
{
	if (all_well)
		completed(w, slot, 0);
	else if (slot->direction == NVS_WRITE)
		note_written(slot, false);
	slot->state = SLOT_FREE;
}

static void op_wait_all(struct world *w)
{
	int timeout_ms = choose_timeout(w);
	uint64_t n = 0;
	int rc = nvs_aio_wait_all(w->aio, timeout_ms, &n, &w->error);

	history_log("wait for all: %" PRIu64 ", %s\n", n, nvs_strerror(rc));
	if (rc == -EAGAIN || rc == -ETIMEDOUT) {
		check_timed_out(rc, timeout_ms);
		return;
	}
	HOLDS(n == w->submitted && (rc || !w->failed));
	for (struct slot *slot = w->slots; slot < w->slots + SLOTS; slot++) {
		if (slot->state != SLOT_SUBMITTED)
			continue;
		if (slot->request)
			seen(w, slot);
		else
			closed(w, slot, !rc);
	}
	HOLDS(w->failed || !rc || history_drive_caused(&w->drive, rc) || rc == -ENODATA);
	w->submitted = 0;
	w->failed = false;
}

static void op_take(struct world *w)
{
	struct pollfd event = {.fd = w->eventfd, .events = POLLIN};
	struct nvs_request *requests[SLOTS];
	size_t most = below(&w->random, SLOTS + 1), n;
	bool readable = poll(&event, 1, 0) == 1;

	n = nvs_aio_take(w->aio, requests, most);
	history_log("take %zu: %zu%s\n", most, n, readable ? ", readable" : "");
	HOLDS(n <= most && (n || !readable || !most));
	for (size_t i = 0; i < n; i++) {
		struct slot *slot = nvs_request_user(requests[i]);

		/* Those of nvs_aio_pread and nvs_aio_pwrite have none. */
		for (struct slot *s = w->slots; !slot; s++) {
			HOLDS(s < w->slots + SLOTS);
			slot = s->state == SLOT_SUBMITTED && s->request == requests[i] ? s : NULL;
		}
		HOLDS(!slot->request || slot->request == requests[i]);
		slot->request = requests[i];
		seen(w, slot);
	}
}

static void op_close(struct world *w)
{
	struct slot *slot = &w->slots[below(&w->random, SLOTS)];

	if (slot->state == SLOT_SEEN) {
		history_log("close\n");
		HOLDS(nvs_request_close(slot->request) == 0);
		slot->state = SLOT_FREE;
	} else if (slot->state == SLOT_SUBMITTED && slot->request && w->drive.held &&
		   is_in_flight(slot)) {
		history_log("close in flight\n");
		HOLDS(nvs_request_close(slot->request) == -EINVAL);
	}
}

/* ---- Files and memory ---- */

static void open_file(struct world *w, struct file *file)
{
	unsigned flags = (file->writable ? NVS_FILE_WRITE : 0) |
			 (one_in(w, 3) ? NVS_FILE_BUFFERED : 0);
	int fd = -1, rc;

	if (one_in(w, 2)) {
		fd = open(file->path, (file->writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
		HOLDS(fd >= 0);
		rc = nvs_file_from_fd(w->aio, fd, flags, &file->handle, &w->error);
		close(fd);
	} else {
		rc = nvs_file_open(w->aio, file->path, flags, &file->handle, &w->error);
	}
	history_log("open %s%s%s\n", file->writable ? "to write" : "to read",
		    fd < 0 ? "" : " by a descriptor",
		    nvs_file_direct(file->handle) ? ", direct" : "");
	HOLDS(!rc);
}

static void op_file(struct world *w)
{
	struct file *file = &w->files[below(&w->random, FILES)];

	if (one_in(w, 2)) {
		history_log("sync\n");
		HOLDS(nvs_file_sync(file->handle, &w->error) == 0);
		return;
	}
	/* It waits for the file's requests. */
	if (w->drive.held)
		return;
	history_log("close the file\n");
	nvs_file_close(file->handle);
	file->writable = !one_in(w, 4);
	open_file(w, file);
}

static void op_memory(struct world *w)
{
	size_t nbytes = SLOTS * SLOT_ROOM;
	int rc = 0;

	/* Workers apply the change between two rounds, and may wait for several I/Os in one. */
	if (w->drive.held)
		return;
	history_log("%s memory", w->registered ? "unregister" : "register");
	if (w->registered)
		nvs_aio_unregister_memory(w->aio, w->memory);
	else
		rc = nvs_aio_register_memory(w->aio, w->memory, nbytes);
	history_log_more(": %s\n", nvs_strerror(rc));
	HOLDS(!rc);
	w->registered = !w->registered;
}

/* ---- The drive ---- */

static void op_drive(struct world *w)
{
	if (w->drive.held && one_in(w, 2)) {
		unsigned n = 1 + (unsigned)below(&w->random, 8);

		history_log("complete %u", n);
		history_log_more(": %u\n", sim_complete(w->drive.sim, n));
	} else if (w->drive.held) {
		history_log("go\n");
		history_drive_go(&w->drive);
	} else if (one_in(w, 3) && w->drive.faulty) {
		if (w->drive.stormy)
			history_drive_calm(&w->drive);
		else
			history_drive_storm(&w->drive, one_in(w, 2), EIO);
	} else if (one_in(w, 3)) {
		history_log("hold\n");
		history_drive_hold(&w->drive);
	}
}

/* ---- The world ---- */

static void *begin(const struct history_model *model, const char *directory, uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));
	struct nvs_config config;

	(void)model;
	HOLDS(w);
	w->random = seed;
	w->error.size = sizeof(w->error);
	history_drive_open(&w->drive, next_random(&w->random), false, false);
	config_init(&config);
	config.aio.block_size = 512u << below(&w->random, 6);
	config.aio.queue_depth = 1 + (uint32_t)below(&w->random, 12);
	config.aio.thread_count = 1 + (uint32_t)below(&w->random, 3);
	config.aio.single_submit = one_in(w, 4);
	config.aio.overlap_events = !one_in(w, 4);
	HOLDS(!aio_open_with(&w->aio, &config.aio, &engine_sim, w->drive.sim, NULL, &w->error));
	config_free(&config);
	w->memory = mmap(NULL, SLOTS * (SLOT_ROOM), PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	HOLDS(w->memory != MAP_FAILED);
	w->eventfd = nvs_aio_eventfd(w->aio);
	HOLDS(w->eventfd >= 0);
	for (size_t i = 0; i < FILES; i++) {
		struct file *file = &w->files[i];
		int fd;

		snprintf(file->path, sizeof(file->path), "%s/file%zu", directory, i);
		fd = open(file->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		HOLDS(fd >= 0 && !ftruncate(fd, FILE_BYTES));
		close(fd);
		file->writable = true;
		open_file(w, file);
	}
	return w;
}

static void operation(void *world, uint64_t seed)
{
	static void (*const operations[])(struct world *) = {
		op_submit,   op_submit, op_pread, op_wait, op_wait_any, op_take,
		op_wait_all, op_close,	op_close, op_file, op_memory,	op_drive};
	struct world *w = world;

	w->random = seed;
	operations[below(&w->random, LENGTH(operations))](w);
}

static void end(void *world)
{
	struct world *w = world;
	struct nvs_request *request;
	uint64_t n;

	history_drive_mend(&w->drive);
	(void)nvs_aio_wait_all(w->aio, -1, &n, &w->error);
	HOLDS(n == w->submitted);
	for (struct slot *slot = w->slots; slot < w->slots + SLOTS; slot++) {
		if (slot->state == SLOT_SUBMITTED && slot->request)
			seen(w, slot);
		else if (slot->state == SLOT_SUBMITTED)
			closed(w, slot, false);
		if (slot->state == SLOT_SEEN)
			HOLDS(nvs_request_close(slot->request) == 0);
	}
	/* Every file is read whole, on a drive without faults. */
	for (struct file *file = w->files; file < w->files + FILES; file++) {
		static unsigned char bytes[FILE_BYTES];

		HOLDS(!nvs_aio_pread(w->aio, file->handle, bytes, FILE_BYTES, 0, &request,
				     &w->error));
		HOLDS(!nvs_aio_wait(w->aio, &request, 1, -1, &w->error));
		HOLDS(!nvs_request_close(request));
		for (uint64_t i = 0; i < FILE_BYTES; i++)
			HOLDS(file->unknown[i] || bytes[i] == file->bytes[i]);
		nvs_file_close(file->handle);
	}
	nvs_aio_close(w->aio);
	history_drive_close(&w->drive);
	munmap(w->memory, SLOTS * (SLOT_ROOM));
	free(w);
}

const struct history_model history_aio = {"aio", begin, operation, end, false};
