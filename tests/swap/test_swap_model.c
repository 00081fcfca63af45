/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of all calls on a small pool, against a plain model of each tensor's contents;
 * over I/O engines, file systems, stripes and settings.
 */
#include "support/support.h"
#include "support/tests.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <inttypes.h>

#define N     48
#define BATCH 8

struct modelled {
	struct nvs_tensor *tensor;
	uint64_t nbytes, extent;
	uint64_t version; /* number of its contents; 0: none */
	uint32_t uses;
	bool leased;	 /* its only pin asked for new contents */
	bool changed;	 /* written while pinned */
	bool may_revert; /* leased, and its old contents are on the drive */
};

struct model {
	struct fixture f;
	struct modelled t[N];
	uint64_t random, seed, versions, unit, pool;
	uint32_t uses;
	/* The batch of the current operation. */
	struct nvs_tensor *batch[BATCH];
	size_t index[BATCH], n;
	char *memory;
	void *data[BATCH];
};

static uint64_t contents_of(const struct model *m, size_t i, uint64_t version)
{
	return m->seed ^ (i << 40) ^ version;
}

static struct modelled *nth(struct model *m, size_t k)
{
	return &m->t[m->index[k]];
}

/* ---- Batches ---- */

typedef bool choice(const struct modelled *t);

static bool any(const struct modelled *t)
{
	(void)t;
	return true;
}

static bool unused(const struct modelled *t)
{
	return !t->uses;
}

static bool not_leased(const struct modelled *t)
{
	return !t->leased;
}

static bool used_unchanged(const struct modelled *t)
{
	return t->uses && !t->leased && !t->changed;
}

static bool used_any(const struct modelled *t)
{
	return t->uses;
}

static bool revertible(const struct modelled *t)
{
	return t->leased && t->may_revert;
}

/* Chooses up to `most` different tensors, starting at a random one. */
static void choose(struct model *m, choice *good, size_t most)
{
	size_t at = below(&m->random, N), step = 1 + 2 * below(&m->random, N / 2);

	/* A step coprime to N visits every tensor once. */
	while (step % 3 == 0)
		step += 2;
	m->n = 0;
	for (size_t k = 0; k < N && m->n < most; k++, at = (at + step) % N)
		if (good(&m->t[at])) {
			m->batch[m->n] = m->t[at].tensor;
			m->index[m->n++] = at;
		}
}

static bool batch_has(struct model *m, bool (*what)(const struct modelled *t))
{
	for (size_t k = 0; k < m->n; k++)
		if (what(nth(m, k)))
			return true;
	return false;
}

static bool empty(const struct modelled *t)
{
	return !t->version && !t->leased;
}

static uint64_t batch_extent(struct model *m)
{
	uint64_t sum = 0;

	for (size_t k = 0; k < m->n; k++)
		sum += nth(m, k)->extent;
	return sum;
}

static size_t some(struct model *m)
{
	return 1 + below(&m->random, BATCH);
}

static void wait_for(struct model *m, struct nvs_tensor **tensors, size_t n)
{
	if (below(&m->random, 2)) {
		int rc = sole_wait(m->f.engine, tensors, n, 0, &m->f.error);

		assert_true(rc == 0 || rc == -EAGAIN);
	}
	OK(&m->f, sole_wait(m->f.engine, tensors, n, -1, &m->f.error));
}

static void wait_for_all(struct model *m)
{
	for (size_t i = 0; i < N; i++)
		OK(&m->f, sole_wait(m->f.engine, &m->t[i].tensor, 1, -1, &m->f.error));
}

/* ---- Uses ---- */

/* No other thread unpins, so only a call that finds nothing pinned may wait without a limit. */
static int begin(struct model *m, bool contents)
{
	int timeout_ms = m->uses ? 0 : -1;
	int rc = contents ? sole_swap_in(m->f.engine, m->batch, m->n, timeout_ms, &m->f.error)
			  : sole_pin(m->f.engine, m->batch, m->n, timeout_ms, &m->f.error);

	if (contents && batch_has(m, empty))
		assert_int_equal(rc, -ENODATA);
	else if (batch_extent(m) > m->pool)
		assert_int_equal(rc, -ENOBUFS);
	else if (rc != -EAGAIN || !m->uses)
		OK(&m->f, rc);
	if (rc)
		return rc;
	for (size_t k = 0; k < m->n; k++)
		nth(m, k)->uses++;
	m->uses += (uint32_t)m->n;
	return 0;
}

static void op_lease(struct model *m)
{
	choose(m, unused, some(m));
	for (size_t k = 0; k < m->n; k++)
		nth(m, k)->may_revert = !info_of(&m->f, m->batch[k]).dirty;
	if (begin(m, false))
		return;
	for (size_t k = 0; k < m->n; k++) {
		nth(m, k)->leased = true;
		fill(nvs_tensor_data(m->batch[k]), nth(m, k)->nbytes, 12345);
	}
}

static void op_swap_in(struct model *m)
{
	choose(m, not_leased, some(m));
	if (begin(m, true))
		return;
	wait_for(m, m->batch, m->n);
	for (size_t k = 0; k < m->n; k++) {
		const struct modelled *t = nth(m, k);

		assert_true(filled(nvs_tensor_data(t->tensor), t->nbytes,
				   contents_of(m, m->index[k], t->version)));
	}
}

static void op_change(struct model *m)
{
	choose(m, used_any, 2);
	for (size_t k = 0; k < m->n; k++) {
		struct modelled *t = nth(m, k);

		t->version = ++m->versions;
		t->changed = true;
		t->may_revert = false;
		fill(nvs_tensor_data(t->tensor), t->nbytes,
		     contents_of(m, m->index[k], t->version));
	}
}

static void release(struct model *m, enum nvs_how how)
{
	OK(&m->f, sole_release(m->f.engine, m->batch, m->n, how, &m->f.error));
	m->uses -= (uint32_t)m->n;
	for (size_t k = 0; k < m->n; k++) {
		nth(m, k)->uses--;
		nth(m, k)->leased = nth(m, k)->changed = false;
	}
}

/* Leased tensors get their new contents. */
static void release_dirty(struct model *m, size_t most)
{
	choose(m, used_any, most);
	for (size_t k = 0; k < m->n; k++) {
		struct modelled *t = nth(m, k);

		if (!t->leased || t->changed)
			continue;
		t->version = ++m->versions;
		fill(nvs_tensor_data(t->tensor), t->nbytes,
		     contents_of(m, m->index[k], t->version));
	}
	release(m, NVS_DIRTY);
}

static void op_release(struct model *m)
{
	uint64_t how = below(&m->random, 4);

	if (how == 0) {
		choose(m, revertible, some(m));
		release(m, NVS_CLEAN);
	} else if (how < 3) {
		choose(m, used_unchanged, some(m));
		release(m, NVS_CLEAN);
	} else {
		release_dirty(m, some(m));
	}
}

/* ---- Other operations ---- */

static void op_prefetch(struct model *m)
{
	long rc;

	choose(m, any, some(m));
	rc = nvs_tensor_prefetch(m->f.engine, m->batch, m->n, &m->f.error);
	if (batch_has(m, empty))
		assert_int_equal(rc, -ENODATA);
	else
		assert_true(rc >= 0 && rc <= (long)m->n);
}

static void op_swap_out(struct model *m)
{
	int rc;

	choose(m, below(&m->random, 8) ? unused : any, some(m));
	rc = nvs_tensor_swap_out(m->f.engine, m->batch, m->n, &m->f.error);
	assert_int_equal(rc, batch_has(m, used_any) ? -EBUSY : 0);
}

static void lay_out(struct model *m)
{
	char *at = m->memory;

	for (size_t k = 0; k < m->n; k++) {
		at += below(&m->random, 600);
		m->data[k] = at;
		at += nth(m, k)->nbytes;
	}
}

static void op_swap_out_from(struct model *m)
{
	int rc;

	wait_for_all(m);
	choose(m, below(&m->random, 8) ? unused : any, some(m));
	lay_out(m);
	for (size_t k = 0; k < m->n; k++)
		fill(m->data[k], nth(m, k)->nbytes,
		     contents_of(m, m->index[k], m->versions + 1 + k));
	rc = nvs_tensor_swap_out_from(m->f.engine, m->batch, (const void *const *)m->data, m->n,
				      &m->f.error);
	assert_int_equal(rc, batch_has(m, used_any) ? -EBUSY : 0);
	if (rc)
		return;
	for (size_t k = 0; k < m->n; k++)
		nth(m, k)->version = ++m->versions;
	wait_for(m, m->batch, m->n);
}

static void op_swap_in_to(struct model *m)
{
	int rc;

	wait_for_all(m);
	choose(m, unused, some(m));
	lay_out(m);
	rc = nvs_tensor_swap_in_to(m->f.engine, m->batch, m->data, m->n, &m->f.error);
	assert_int_equal(rc, batch_has(m, empty) ? -ENODATA : 0);
	if (rc)
		return;
	wait_for(m, m->batch, m->n);
	for (size_t k = 0; k < m->n; k++)
		assert_true(filled(m->data[k], nth(m, k)->nbytes,
				   contents_of(m, m->index[k], nth(m, k)->version)));
}

static void op_commit(struct model *m)
{
	bool busy = false;
	int rc;

	for (size_t i = 0; i < N; i++)
		busy |= m->t[i].leased || (m->t[i].uses && info_of(&m->f, m->t[i].tensor).dirty);
	rc = nvs_engine_commit(m->f.engine, &m->f.error);
	assert_int_equal(rc, busy ? -EBUSY : 0);
}

static void add(struct model *m, size_t i)
{
	char name[16];

	snprintf(name, sizeof(name), "t%zu", i);
	m->t[i].tensor = tensor_add(&m->f, name, m->t[i].nbytes);
	m->t[i].version = 0;
}

static void op_forget(struct model *m)
{
	wait_for_all(m);
	choose(m, unused, 2);
	OK(&m->f, nvs_tensor_forget(m->f.engine, m->batch, m->n, &m->f.error));
	for (size_t k = 0; k < m->n; k++)
		add(m, m->index[k]);
}

/* The sizes of the tensors add up to the pool's statistics. */
static void op_look(struct model *m)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};
	uint64_t used = 0;

	wait_for_all(m);
	for (size_t i = 0; i < N; i++) {
		struct nvs_tensor_info info = info_of(&m->f, m->t[i].tensor);

		assert_int_equal(info.pins, m->t[i].uses);
		assert_int_equal(info.status, 0);
		assert_true(info.state == NVS_EMPTY || info.state == NVS_ON_DRIVE ||
			    info.state == NVS_RESIDENT);
		assert_int_equal(info.state == NVS_EMPTY, empty(&m->t[i]));
		used += info.state == NVS_RESIDENT ? m->t[i].extent : 0;
	}
	nvs_engine_get_stats(m->f.engine, &stats);
	assert_int_equal(stats.pool.used, used);
	assert_int_equal(stats.verify_errors, 0);
}

static void (*const operations[])(struct model *m) = {
	op_lease,	  op_lease,	 op_swap_in, op_swap_in,  op_swap_in,
	op_change,	  op_release,	 op_release, op_release,  op_release,
	op_prefetch,	  op_prefetch,	 op_release, op_swap_out, op_swap_out,
	op_swap_out_from, op_swap_in_to, op_commit,  op_forget,	  op_look,
};

/* ---- Histories ---- */

static void begin_history(struct model *m, const struct setup *setup)
{
	uint64_t block = setup->block_size ? setup->block_size : 64 * KIB;
	uint64_t sum = 0;

	memset(m, 0, sizeof(*m));
	m->random = m->seed = seed_of_run();
	fixture_open(&m->f, setup);
	m->unit = store_unit(m->f.engine->store);
	m->pool = pool_bytes(m->f.engine->pool);
	for (size_t i = 0; i < N; i++) {
		const uint64_t edges[] = {0,	       1,     m->unit - 1, m->unit,
					  m->unit + 1, block, block + 1,   2 * block - 1};
		struct modelled *t = &m->t[i];

		t->nbytes = i < LENGTH(edges) ? edges[i] : below(&m->random, 320 * KIB);
		t->extent = (t->nbytes + m->unit - 1) / m->unit * m->unit;
		sum += t->nbytes + 600;
		add(m, i);
	}
	m->memory = malloc(sum);
	assert_non_null(m->memory);
}

static void end_history(struct model *m)
{
	struct nvs_engine_stats stats = {.size = sizeof(stats)};

	while (m->uses)
		release_dirty(m, BATCH);
	for (size_t i = 0; i < N; i++)
		if (m->t[i].version)
			tensor_compare(&m->f, m->t[i].tensor, contents_of(m, i, m->t[i].version));
	op_look(m);
	for (size_t i = 0; i < N; i++)
		OK(&m->f, nvs_tensor_swap_out(m->f.engine, &m->t[i].tensor, 1, &m->f.error));
	wait_for_all(m);
	nvs_engine_get_stats(m->f.engine, &stats);
	assert_int_equal(stats.pool.used, 0);
	assert_true(stats.evictions > 0);
	free(m->memory);
	fixture_close(&m->f);
}

static void history(const struct setup *setup)
{
	static struct model m;

	begin_history(&m, setup);
	for (unsigned i = 0; i < at_length(SANITIZED ? 1000 : 3000, SANITIZED ? 300 : 1000); i++)
		operations[below(&m.random, LENGTH(operations))](&m);
	end_history(&m);
}

#define HISTORY(...) history(&(const struct setup){.pool_bytes = MIB, __VA_ARGS__})

TEST(agrees_on_io_uring)
{
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_IO_URING);
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_IO_URING, .thread_count = 3,
		.verify = true);
}

TEST(agrees_on_libaio)
{
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_LIBAIO, .verify = true);
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_LIBAIO, .thread_count = 3,
		.queue_depth = 2);
}

TEST(agrees_on_posix)
{
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_POSIX, .verify = true);
	HISTORY(.place = PLACE_EXT4, .ioengine = NVS_IOENGINE_POSIX, .thread_count = 3);
}

TEST(agrees_buffered)
{
	HISTORY(.place = PLACE_TMPFS, .verify = true, .block_size = 4096, .queue_depth = 32);
	HISTORY(.place = PLACE_TMPFS, .thread_count = 3);
}

TEST(agrees_over_stripes)
{
	HISTORY(.place = PLACE_EXT4, .npaths = 2, .stripe_size = 4096, .verify = true);
	HISTORY(.place = PLACE_EXT4, .npaths = 3, .stripe_size = 7 * 4096, .thread_count = 3,
		.verify = true);
	HISTORY(.place = PLACE_TMPFS, .npaths = 3, .stripe_size = 123456, .verify = true);
}

TEST(agrees_with_a_small_max_in_cpu)
{
	HISTORY(.place = PLACE_TMPFS, .max_in_cpu = NONE_STAYS, .verify = true);
	HISTORY(.place = PLACE_TMPFS, .max_in_cpu = 200000);
}

TEST(agrees_in_host_memory)
{
	HISTORY(.device = NVS_DEVICE_CPU, .verify = true);
}

TEST(agrees_with_a_kept_store)
{
	HISTORY(.place = PLACE_EXT4, .keep = true, .verify = true);
}
