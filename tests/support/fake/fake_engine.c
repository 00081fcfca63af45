/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See fake_engine.h. One lock for all queues: simple rather than fast.
 */
#include "support/fake/fake_engine.h"

#include <sys/uio.h>

#include "base/clock.h"
#include "support/support.h"

#define AWAIT_MS 20000

struct fake_region {
	char *data;
	size_t nbytes;
};

struct fake_queue {
	struct fake *fake;
	void *inner;
	struct engine_facts *facts;
	unsigned number, in_flight, in_flight_max;
	bool woken, interrupted, waits, open;
	struct io **ios;		/* in flight, oldest first */
	const struct fake_rule **rules; /* by io->index: its rule, or NULL */
	bool *busy;			/* by io->index */
	struct engine_options options;
	int files[ENGINE_FILES];
	struct fake_region regions[ENGINE_BUFFERS];
};

static struct fake *lock(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	return fake;
}

static void unlock(struct fake **locked)
{
	pthread_mutex_unlock(&(*locked)->lock);
}

/* Until the end of the block. */
#define LOCKED(fake) struct fake *locked __attribute__((cleanup(unlock), unused)) = lock(fake)

void fake_init(struct fake *fake, const struct engine_ops *inner)
{
	*fake = (struct fake){.inner = inner, .allowed = FAKE_ALL, .take_max = FAKE_ALL};
	pthread_mutex_init(&fake->lock, NULL);
	pthread_cond_init(&fake->changed, NULL);
	fake->ios = calloc(FAKE_LOG_MAX, sizeof(*fake->ios));
	fake->batches = calloc(FAKE_LOG_MAX, sizeof(*fake->batches));
	MUST(fake->ios && fake->batches);
}

void fake_destroy(struct fake *fake)
{
	MUST(fake->closed == fake->nqueues);
	for (unsigned i = 0; i < fake->nqueues; i++)
		free(fake->queues[i]);
	free(fake->ios);
	free(fake->batches);
	pthread_mutex_destroy(&fake->lock);
	pthread_cond_destroy(&fake->changed);
}

void fake_forget(struct fake *fake)
{
	LOCKED(fake);

	fake->nios = fake->nbatches = 0;
	fake->nrules = 0;
	for (unsigned i = 0; i < fake->nqueues; i++) {
		MUST(!fake->queues[i]->in_flight);
		fake->queues[i]->in_flight_max = 0;
	}
}

void fake_hold(struct fake *fake)
{
	LOCKED(fake);

	fake->allowed = 0;
}

void fake_release(struct fake *fake, uint64_t n)
{
	LOCKED(fake);

	fake->allowed = n == FAKE_ALL ? n : fake->allowed + n;
	pthread_cond_broadcast(&fake->changed);
}

static void add_rule(struct fake *fake, const struct fake_rule *rule)
{
	LOCKED(fake);

	MUST(fake->nrules < FAKE_RULES_MAX);
	fake->rules[fake->nrules++] = *rule;
}

void fake_fail_nth(struct fake *fake, uint64_t first, uint64_t times, int result)
{
	add_rule(fake, &(struct fake_rule){.first = first, .times = times, .result = result});
}

void fake_fail_at(struct fake *fake, uint64_t offset, uint64_t times, int result)
{
	add_rule(fake, &(struct fake_rule){
			       .offset = offset, .at = true, .times = times, .result = result});
}

void fake_refuse(struct fake *fake, uint64_t times, int status)
{
	LOCKED(fake);

	fake->refusals = times;
	fake->refuse_status = status;
}

void fake_take(struct fake *fake, uint64_t n)
{
	LOCKED(fake);

	fake->take_max = n;
}

void fake_refuse_buffers(struct fake *fake, int status)
{
	LOCKED(fake);

	fake->buffer_status = status;
}

void fake_hold_buffers(struct fake *fake, bool hold)
{
	LOCKED(fake);

	fake->hold_buffers = hold;
	pthread_cond_broadcast(&fake->changed);
}

static unsigned waiting(const struct fake *fake)
{
	unsigned n = 0;

	for (unsigned i = 0; i < fake->nqueues; i++)
		n += fake->queues[i]->waits;
	return n;
}

/* Waits until the condition holds; false after a time. */
#define AWAIT(fake, condition)                                                                     \
	uint64_t deadline = deadline_ns(AWAIT_MS);                                                 \
	LOCKED(fake);                                                                              \
                                                                                                   \
	while (!(condition))                                                                       \
		if (cond_wait_until(&locked->changed, &locked->lock, deadline))                    \
			return false;                                                              \
	return true

bool fake_await_ios(struct fake *fake, uint64_t n)
{
	AWAIT(fake, fake->nios >= n);
}

bool fake_await_waiting(struct fake *fake, unsigned n)
{
	AWAIT(fake, waiting(fake) >= n);
}

bool fake_await_registering(struct fake *fake, unsigned n)
{
	AWAIT(fake, fake->registering >= n);
}

unsigned fake_in_flight_max(struct fake *fake)
{
	unsigned max = 0;
	LOCKED(fake);

	for (unsigned i = 0; i < fake->nqueues; i++)
		if (fake->queues[i]->in_flight_max > max)
			max = fake->queues[i]->in_flight_max;
	return max;
}

/* ---- Opening and closing ---- */

static void queue_release(struct fake_queue *queue)
{
	free(queue->ios);
	free(queue->rules);
	free(queue->busy);
}

static int fake_open(void **out, const struct engine_options *options, struct engine_facts *facts,
		     char *reason, size_t reason_bytes)
{
	struct fake *fake = options->arg;
	struct fake_queue *queue = calloc(1, sizeof(*queue));
	int rc = 0;

	MUST(queue);
	queue->fake = fake;
	queue->facts = facts;
	queue->options = *options;
	queue->options.without |= fake->without;
	queue->ios = calloc(options->depth, sizeof(struct io *));
	queue->rules = calloc(options->depth, sizeof(struct fake_rule *));
	queue->busy = calloc(options->depth, sizeof(bool));
	MUST(queue->ios && queue->rules && queue->busy);
	memset(queue->files, -1, sizeof(queue->files));
	if (fake->inner)
		rc = fake->inner->open(&queue->inner, &queue->options, facts, reason, reason_bytes);
	else
		facts->fixed_buffers = facts->fixed_files = true;
	if (rc) {
		queue_release(queue);
		free(queue);
		return rc;
	}
	LOCKED(fake);
	MUST(fake->nqueues < FAKE_QUEUES_MAX);
	queue->number = fake->nqueues;
	queue->open = true;
	fake->queues[fake->nqueues++] = queue;
	*out = queue;
	return 0;
}

static void fake_close(void *arg)
{
	struct fake_queue *queue = arg;
	struct fake *fake = queue->fake;

	if (fake->inner)
		fake->inner->close(queue->inner);
	LOCKED(fake);
	MUST(queue->open && !queue->in_flight);
	queue->open = false;
	queue_release(queue);
	fake->closed++;
}

/* ---- Taking I/Os ---- */

static const struct fake_rule *rule_for(struct fake *fake, const struct io *io)
{
	for (unsigned i = 0; i < fake->nrules; i++) {
		struct fake_rule *rule = &fake->rules[i];

		if (rule->at
			    ? rule->times && rule->offset >= io->offset &&
				      rule->offset < io->offset + io->nbytes
			    : fake->nios >= rule->first && fake->nios < rule->first + rule->times) {
			rule->times -= rule->at;
			return rule;
		}
	}
	return NULL;
}

/* Under the lock: how many of `n` are taken, or the status of fake_refuse(). */
static int take(struct fake_queue *queue, struct io *const *ios, unsigned n)
{
	struct fake *fake = queue->fake;
	struct fake_batch batch = {.queue = queue->number, .in_flight = queue->in_flight};

	MUST(queue->open && n && queue->in_flight + n <= queue->options.depth);
	if (fake->refusals) {
		fake->refusals--;
		return fake->refuse_status;
	}
	batch.n = n < fake->take_max ? n : (unsigned)fake->take_max;
	for (unsigned i = 0; i < batch.n; i++) {
		struct io *io = ios[i];
		const char *data = io->data;

		MUST(io->nbytes && io->index < queue->options.depth && !queue->busy[io->index]);
		if (io->file_slot >= 0)
			MUST(queue->files[io->file_slot] == io->fd);
		if (io->buffer_slot >= 0) {
			const struct fake_region *region = &queue->regions[io->buffer_slot];

			MUST(region->data && data >= region->data &&
			     data + io->nbytes <= region->data + region->nbytes);
		}
		queue->busy[io->index] = true;
		queue->rules[io->index] = rule_for(fake, io);
		queue->ios[queue->in_flight++] = io;
		MUST(fake->nios < FAKE_LOG_MAX && fake->nbatches < FAKE_LOG_MAX);
		fake->ios[fake->nios++] = (struct fake_io){
			.queue = queue->number,
			.batch = (unsigned)fake->nbatches,
			.data = io->data,
			.nbytes = io->nbytes,
			.offset = io->offset,
			.fd = io->fd,
			.file_slot = io->file_slot,
			.buffer_slot = io->buffer_slot,
			.write = io->write,
			.sync = io->sync,
		};
	}
	fake->batches[fake->nbatches++] = batch;
	if (queue->in_flight > queue->in_flight_max)
		queue->in_flight_max = queue->in_flight;
	pthread_cond_broadcast(&fake->changed);
	return (int)batch.n;
}

static int fake_submit(void *arg, struct io *const *ios, unsigned n)
{
	struct fake_queue *queue = arg;
	const struct engine_ops *inner = queue->fake->inner;
	int rc, done;

	pthread_mutex_lock(&queue->fake->lock);
	rc = take(queue, ios, n);
	pthread_mutex_unlock(&queue->fake->lock);
	/* The I/Os are recorded as taken, so the real engine must take all of them. */
	for (int i = 0; inner && i < rc; i += done) {
		done = inner->submit(queue->inner, ios + i, (unsigned)(rc - i));
		MUST(done > 0);
	}
	if (rc > 0 && !inner)
		queue->facts->submit_calls += queue->options.single_submit ? (unsigned)rc : 1;
	return rc;
}

/* ---- Completing I/Os ---- */

/* Ends the I/O at that place. A short one moves all its bytes and reports fewer: direct I/O can't
 * stop at any byte. */
static struct io *complete(struct fake_queue *queue, unsigned at)
{
	struct io *io = queue->ios[at];
	const struct fake_rule *rule = queue->rules[io->index];
	struct iovec run = {.iov_base = io->data, .iov_len = io->nbytes};
	ssize_t rc = io->nbytes;

	queue->in_flight--;
	memmove(queue->ios + at, queue->ios + at + 1,
		(queue->in_flight - at) * sizeof(struct io *));
	if (rule && rule->result <= 0) {
		io->result = rule->result;
	} else if (!queue->fake->inner) {
		if (!queue->fake->dry)
			rc = io->write ? pwritev2(io->fd, &run, 1, (off_t)io->offset,
						  io->sync ? RWF_DSYNC : 0)
				       : preadv2(io->fd, &run, 1, (off_t)io->offset, 0);
		io->result = rc < 0 ? -errno : (int)rc;
	}
	if (rule && rule->result > 0 && io->result > rule->result)
		io->result = rule->result;
	queue->busy[io->index] = false;
	queue->rules[io->index] = NULL;
	return io;
}

static unsigned ready(const struct fake_queue *queue)
{
	uint64_t allowed = queue->fake->allowed;

	return allowed < queue->in_flight ? (unsigned)allowed : queue->in_flight;
}

/* Waits until `min` I/Os may complete, or until wake(): then false. */
static bool wait_for(struct fake_queue *queue, unsigned min)
{
	struct fake *fake = queue->fake;

	queue->waits = true;
	fake->least = min;
	pthread_cond_broadcast(&fake->changed);
	while (ready(queue) < min && !queue->interrupted && !(queue->woken && min == 1))
		pthread_cond_wait(&fake->changed, &fake->lock);
	queue->waits = false;
	if (min)
		queue->interrupted = false;
	if (min == 1)
		queue->woken = false;
	return ready(queue) >= min;
}

/* Held completions stay in the real engine. */
static int reap_inner(struct fake_queue *queue, struct io **ios, unsigned max, unsigned min)
{
	struct fake *fake = queue->fake;
	bool may;
	int n;

	pthread_mutex_lock(&fake->lock);
	may = fake->allowed || (wait_for(queue, min) && fake->allowed);
	pthread_mutex_unlock(&fake->lock);
	if (!may)
		return 0;
	n = fake->inner->reap(queue->inner, ios, max, min);
	MUST(n >= 0);
	LOCKED(fake);
	for (int i = 0; i < n; i++) {
		unsigned at = 0;

		while (at < queue->in_flight && queue->ios[at] != ios[i])
			at++;
		MUST(at < queue->in_flight);
		complete(queue, at);
	}
	return n;
}

static int fake_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct fake_queue *queue = arg;
	struct fake *fake = queue->fake;
	unsigned n = 0;

	MUST(queue->open && min <= queue->in_flight && min <= max);
	if (fake->inner)
		return reap_inner(queue, ios, max, min);
	queue->facts->reap_calls++;
	LOCKED(fake);
	if (min && !wait_for(queue, min))
		return 0;
	while (n < max && ready(queue)) {
		ios[n++] = complete(queue, fake->newest_first ? queue->in_flight - 1 : 0);
		if (fake->allowed != FAKE_ALL)
			fake->allowed--;
	}
	return (int)n;
}

static void fake_wake(void *arg, bool any)
{
	struct fake_queue *queue = arg;

	pthread_mutex_lock(&queue->fake->lock);
	queue->woken |= !any;
	queue->interrupted |= any;
	pthread_cond_broadcast(&queue->fake->changed);
	pthread_mutex_unlock(&queue->fake->lock);
	if (queue->fake->inner)
		queue->fake->inner->wake(queue->inner, any);
}

/* ---- Registering ---- */

static int fake_set_file(void *arg, unsigned slot, int fd)
{
	struct fake_queue *queue = arg;
	const struct engine_ops *inner = queue->fake->inner;
	int rc = 0;

	MUST(slot < ENGINE_FILES);
	if (inner)
		rc = inner->set_file ? inner->set_file(queue->inner, slot, fd) : -ENOTSUP;
	pthread_mutex_lock(&queue->fake->lock);
	for (unsigned i = 0; i < queue->in_flight; i++)
		MUST(queue->ios[i]->file_slot != (int)slot);
	if (!rc)
		queue->files[slot] = fd;
	pthread_mutex_unlock(&queue->fake->lock);
	return rc;
}

static int fake_set_buffer(void *arg, unsigned slot, void *data, size_t nbytes)
{
	struct fake_queue *queue = arg;
	const struct engine_ops *inner = queue->fake->inner;
	int rc;

	MUST(slot < ENGINE_BUFFERS);
	pthread_mutex_lock(&queue->fake->lock);
	queue->fake->registering++;
	pthread_cond_broadcast(&queue->fake->changed);
	while (data && queue->fake->hold_buffers)
		pthread_cond_wait(&queue->fake->changed, &queue->fake->lock);
	queue->fake->registering--;
	rc = data ? queue->fake->buffer_status : 0;
	pthread_mutex_unlock(&queue->fake->lock);
	if (!rc && inner)
		rc = inner->set_buffer ? inner->set_buffer(queue->inner, slot, data, nbytes)
				       : -ENOTSUP;
	pthread_mutex_lock(&queue->fake->lock);
	if (!rc)
		queue->regions[slot] = (struct fake_region){.data = data, .nbytes = nbytes};
	pthread_mutex_unlock(&queue->fake->lock);
	return rc;
}

const struct engine_ops engine_fake = {
	.name = "fake",
	.open = fake_open,
	.submit = fake_submit,
	.reap = fake_reap,
	.wake = fake_wake,
	.set_file = fake_set_file,
	.set_buffer = fake_set_buffer,
	.close = fake_close,
};

/* ---- An aio over it ---- */

struct nvs_aio *fake_aio_open(struct fake *fake, const struct aio_config *config,
			      const struct nvs_log *log)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_aio *aio;

	SUCCEEDS(aio_open_with(&aio, config, &engine_fake, fake, log, &error), &error);
	return aio;
}

struct nvs_file *fake_file_open(struct nvs_aio *aio, unsigned flags)
{
	char path[] = "build/tmp/nvswap-test-XXXXXX";
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_file *file;
	int fd;

	(void)mkdir("build", 0755);
	(void)mkdir("build/tmp", 0755);
	fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	SUCCEEDS(nvs_file_open(aio, path, flags, &file, &error), &error);
	unlink(path);
	return file;
}
