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
	pthread_mutex_lock(&fake->lock);
	fake->nios = fake->nbatches = 0;
	fake->nrules = 0;
	for (unsigned i = 0; i < fake->nqueues; i++) {
		MUST(!fake->queues[i]->in_flight);
		fake->queues[i]->in_flight_max = 0;
	}
	pthread_mutex_unlock(&fake->lock);
}

void fake_hold(struct fake *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->allowed = 0;
	pthread_mutex_unlock(&fake->lock);
}

void fake_release(struct fake *fake, uint64_t n)
{
	pthread_mutex_lock(&fake->lock);
	fake->allowed = n == FAKE_ALL ? n : fake->allowed + n;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

static void add_rule(struct fake *fake, const struct fake_rule *rule)
{
	pthread_mutex_lock(&fake->lock);
	MUST(fake->nrules < FAKE_RULES_MAX);
	fake->rules[fake->nrules++] = *rule;
	pthread_mutex_unlock(&fake->lock);
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
	pthread_mutex_lock(&fake->lock);
	fake->refusals = times;
	fake->refuse_status = status;
	pthread_mutex_unlock(&fake->lock);
}

void fake_take(struct fake *fake, uint64_t n)
{
	pthread_mutex_lock(&fake->lock);
	fake->take_max = n;
	pthread_mutex_unlock(&fake->lock);
}

void fake_refuse_buffers(struct fake *fake, int status)
{
	pthread_mutex_lock(&fake->lock);
	fake->buffer_status = status;
	pthread_mutex_unlock(&fake->lock);
}

void fake_hold_buffers(struct fake *fake, bool hold)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_buffers = hold;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

static uint64_t waiting(const struct fake *fake)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < fake->nqueues; i++)
		n += fake->queues[i]->waits;
	return n;
}

static uint64_t registering(const struct fake *fake)
{
	return fake->registering;
}

static uint64_t submitted(const struct fake *fake)
{
	return fake->nios;
}

static bool await(struct fake *fake, uint64_t (*count)(const struct fake *), uint64_t n)
{
	uint64_t deadline = deadline_ns(AWAIT_MS);
	int rc = 0;

	pthread_mutex_lock(&fake->lock);
	while (count(fake) < n && !rc)
		rc = cond_wait_until(&fake->changed, &fake->lock, deadline);
	pthread_mutex_unlock(&fake->lock);
	return !rc;
}

bool fake_await_ios(struct fake *fake, uint64_t n)
{
	return await(fake, submitted, n);
}

bool fake_await_waiting(struct fake *fake, unsigned n)
{
	return await(fake, waiting, n);
}

bool fake_await_registering(struct fake *fake, unsigned n)
{
	return await(fake, registering, n);
}

unsigned fake_in_flight_max(struct fake *fake)
{
	unsigned max = 0;

	pthread_mutex_lock(&fake->lock);
	for (unsigned i = 0; i < fake->nqueues; i++)
		if (fake->queues[i]->in_flight_max > max)
			max = fake->queues[i]->in_flight_max;
	pthread_mutex_unlock(&fake->lock);
	return max;
}

/* ---- Opening and closing ---- */

static void queue_release(struct fake_queue *queue)
{
	free(queue->ios);
	free(queue->rules);
	free(queue->busy);
	queue->ios = NULL;
	queue->rules = NULL;
	queue->busy = NULL;
}

static struct fake_queue *queue_new(struct fake *fake, const struct engine_options *options)
{
	struct fake_queue *queue = calloc(1, sizeof(*queue));

	MUST(queue);
	queue->fake = fake;
	queue->options = *options;
	queue->options.without |= fake->without;
	queue->ios = calloc(options->depth, sizeof(struct io *));
	queue->rules = calloc(options->depth, sizeof(struct fake_rule *));
	queue->busy = calloc(options->depth, sizeof(bool));
	MUST(queue->ios && queue->rules && queue->busy);
	memset(queue->files, -1, sizeof(queue->files));
	return queue;
}

static int fake_open(void **out, const struct engine_options *options, struct engine_facts *facts,
		     char *reason, size_t reason_bytes)
{
	struct fake *fake = options->arg;
	struct fake_queue *queue = queue_new(fake, options);
	int rc = 0;

	queue->facts = facts;
	if (fake->inner)
		rc = fake->inner->open(&queue->inner, &queue->options, facts, reason, reason_bytes);
	else
		facts->fixed_buffers = facts->fixed_files = true;
	if (rc) {
		queue_release(queue);
		free(queue);
		return rc;
	}
	pthread_mutex_lock(&fake->lock);
	MUST(fake->nqueues < FAKE_QUEUES_MAX);
	queue->number = fake->nqueues;
	queue->open = true;
	fake->queues[fake->nqueues++] = queue;
	pthread_mutex_unlock(&fake->lock);
	*out = queue;
	return 0;
}

static void fake_close(void *arg)
{
	struct fake_queue *queue = arg;
	struct fake *fake = queue->fake;

	if (fake->inner)
		fake->inner->close(queue->inner);
	pthread_mutex_lock(&fake->lock);
	MUST(queue->open && !queue->in_flight);
	queue->open = false;
	queue_release(queue);
	fake->closed++;
	pthread_mutex_unlock(&fake->lock);
}

/* ---- Taking I/Os ---- */

static void check_io(const struct fake_queue *queue, const struct io *io)
{
	MUST(io->nbytes && io->index < queue->options.depth && !queue->busy[io->index]);
	if (io->file_slot >= 0)
		MUST(queue->files[io->file_slot] == io->fd);
	if (io->buffer_slot >= 0) {
		const struct fake_region *region = &queue->regions[io->buffer_slot];
		const char *data = io->data;

		MUST(region->data && data >= region->data &&
		     data + io->nbytes <= region->data + region->nbytes);
	}
}

static bool applies(const struct fake_rule *rule, const struct io *io, uint64_t number)
{
	if (!rule->times)
		return false;
	if (rule->at)
		return rule->offset >= io->offset && rule->offset < io->offset + io->nbytes;
	return number >= rule->first && number < rule->first + rule->times;
}

static const struct fake_rule *rule_for(struct fake *fake, const struct io *io)
{
	for (unsigned i = 0; i < fake->nrules; i++) {
		struct fake_rule *rule = &fake->rules[i];

		if (!applies(rule, io, fake->nios))
			continue;
		if (rule->at)
			rule->times--;
		return rule;
	}
	return NULL;
}

static void take_one(struct fake_queue *queue, struct io *io)
{
	struct fake *fake = queue->fake;

	check_io(queue, io);
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
	for (unsigned i = 0; i < batch.n; i++)
		take_one(queue, ios[i]);
	fake->batches[fake->nbatches++] = batch;
	if (queue->in_flight > queue->in_flight_max)
		queue->in_flight_max = queue->in_flight;
	pthread_cond_broadcast(&fake->changed);
	return (int)batch.n;
}

static int submit_inner(struct fake_queue *queue, struct io *const *ios, unsigned n)
{
	const struct engine_ops *inner = queue->fake->inner;
	unsigned done = 0;

	/* The I/Os are recorded as taken, so the real engine must take all of them. */
	while (done < n) {
		int rc = inner->submit(queue->inner, ios + done, n - done);

		MUST(rc > 0);
		done += (unsigned)rc;
	}
	return (int)n;
}

static int fake_submit(void *arg, struct io *const *ios, unsigned n)
{
	struct fake_queue *queue = arg;
	int rc;

	pthread_mutex_lock(&queue->fake->lock);
	rc = take(queue, ios, n);
	pthread_mutex_unlock(&queue->fake->lock);
	if (rc > 0 && queue->fake->inner)
		return submit_inner(queue, ios, (unsigned)rc);
	if (rc > 0)
		queue->facts->submit_calls += queue->options.single_submit ? (unsigned)rc : 1;
	return rc;
}

/* ---- Completing I/Os ---- */

static int perform(const struct fake_queue *queue, const struct io *io, size_t nbytes)
{
	struct iovec run = {.iov_base = io->data, .iov_len = nbytes};
	ssize_t rc;

	if (queue->fake->dry)
		return (int)nbytes;
	rc = io->write ? pwritev2(io->fd, &run, 1, (off_t)io->offset, io->sync ? RWF_DSYNC : 0)
		       : preadv2(io->fd, &run, 1, (off_t)io->offset, 0);
	return rc < 0 ? -errno : (int)rc;
}

/* A short I/O moves all its bytes and reports fewer: direct I/O can't stop at any byte. */
static void complete(struct fake_queue *queue, struct io *io)
{
	const struct fake_rule *rule = queue->rules[io->index];

	if (rule && rule->result <= 0)
		io->result = rule->result;
	else if (!queue->fake->inner)
		io->result = perform(queue, io, io->nbytes);
	if (rule && rule->result > 0 && io->result > rule->result)
		io->result = rule->result;
	queue->busy[io->index] = false;
	queue->rules[io->index] = NULL;
}

static void remove_io(struct fake_queue *queue, unsigned at)
{
	queue->in_flight--;
	memmove(queue->ios + at, queue->ios + at + 1,
		(queue->in_flight - at) * sizeof(struct io *));
}

static unsigned ready(const struct fake_queue *queue)
{
	uint64_t allowed = queue->fake->allowed;

	return allowed < queue->in_flight ? (unsigned)allowed : queue->in_flight;
}

static unsigned give(struct fake_queue *queue, struct io **ios, unsigned max)
{
	unsigned n = 0;

	while (n < max && ready(queue)) {
		unsigned at = queue->fake->newest_first ? queue->in_flight - 1 : 0;
		struct io *io = queue->ios[at];

		remove_io(queue, at);
		complete(queue, io);
		ios[n++] = io;
		if (queue->fake->allowed != FAKE_ALL)
			queue->fake->allowed--;
	}
	return n;
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
	pthread_mutex_lock(&fake->lock);
	for (int i = 0; i < n; i++) {
		unsigned at = 0;

		while (at < queue->in_flight && queue->ios[at] != ios[i])
			at++;
		MUST(at < queue->in_flight);
		remove_io(queue, at);
		complete(queue, ios[i]);
	}
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static int fake_reap(void *arg, struct io **ios, unsigned max, unsigned min)
{
	struct fake_queue *queue = arg;
	unsigned n = 0;

	MUST(queue->open && min <= queue->in_flight && min <= max);
	if (queue->fake->inner)
		return reap_inner(queue, ios, max, min);
	queue->facts->reap_calls++;
	pthread_mutex_lock(&queue->fake->lock);
	if (!min || wait_for(queue, min))
		n = give(queue, ios, max);
	pthread_mutex_unlock(&queue->fake->lock);
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
