/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer against plain arrays: what state, weights and gradients must be after each call,
 * bit by bit, on a drive that fails. The update is a function of the test's own, which both use.
 */
#include "support/history/history_optim.h"
#include "optim/optimizer.h"
#include "swap/swap_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>

#define GROUPS 4
#define PARTS  3
/* In a kept store a write leaves what was committed alone. */
#define COPY_ON_WRITE 1
#define TRIES	      3 /* of a call on a drive that fails, before it is mended, */
#define TRIES_MENDED  3 /* and after that: what was in flight then may still fail */

/* What a commit keeps of a group, or what it holds now. */
struct contents {
	float *part[PARTS]; /* enum nvs_optimizer_part */
	float *sum;	    /* of the gradients that were added */
	bool added;
};

struct modelled {
	char name[24];
	uint64_t numel;
	struct contents now, committed;
	float *initial, *weights, *gradients; /* the last of these lent */
	bool lent;
	bool weights_known; /* `weights` are the master weights */
};

struct world {
	struct history_drive drive;
	struct nvs_config config;
	struct nvs_optimizer *optimizer;
	struct nvs_error error;
	struct modelled g[GROUPS];
	size_t n;
	float *scratch; /* as long as the longest */
	uint64_t random, longest, series;
	uint64_t steps, committed_steps;
	bool touched; /* since the last commit */
};

/* ---- What both do ---- */

static void update(void *arg, const struct nvs_update *u)
{
	float lr = (float)u->lr, step = (float)u->step;

	(void)arg;
	for (uint64_t i = 0; i < u->numel; i++) {
		float g = u->gradients[i];

		u->exp_avg[i] = 0.9f * u->exp_avg[i] + 0.1f * g;
		u->exp_avg_sq[i] = 0.99f * u->exp_avg_sq[i] + 0.01f * (g * g);
		u->master[i] -= lr * u->exp_avg[i] + step * 1e-6f * u->exp_avg_sq[i];
	}
}

static void make_floats(struct world *w, float *data, uint64_t numel)
{
	uint64_t state = ++w->series;

	for (uint64_t i = 0; i < numel; i++)
		data[i] = (float)(int32_t)(uint32_t)next_random(&state) * 0x1p-31f;
}

static bool same(const float *a, const float *b, uint64_t numel)
{
	return !memcmp(a, b, numel * sizeof(*a));
}

/* ---- Calls ---- */

static bool caused(const struct world *w, int rc)
{
	return history_drive_caused(&w->drive, rc);
}

/* The call returned 0, what `busy` demands, or an error of the drive's. */
static int result(struct world *w, int rc, bool busy)
{
	history_tell_more(": %s%s%s\n", rc ? nvs_strerror(rc) : "ok", rc ? ": " : "",
			  rc ? w->error.text : "");
	if (busy)
		HOLDS(rc == -EBUSY);
	else
		HOLDS(!rc || caused(w, rc));
	if (rc) {
		HOLDS(w->error.code == rc && w->error.text[0]);
		history_counts()->errors += caused(w, rc);
	}
	w->error = (struct nvs_error){0};
	return rc;
}

static struct modelled *any_group(struct world *w, size_t *group)
{
	*group = below(&w->random, w->n);
	return &w->g[*group];
}

static uint64_t any_range(struct world *w, uint64_t numel, uint64_t *offset)
{
	*offset = below(&w->random, numel);
	return 1 + below(&w->random, numel - *offset);
}

/* ---- Gradients ---- */

static void op_lend(struct world *w)
{
	size_t group;
	struct modelled *g = any_group(w, &group);

	history_tell("lend %s", g->name);
	if (!g->now.added)
		make_floats(w, g->gradients, g->numel);
	if (!result(w,
		    nvs_optimizer_lend_gradients(w->optimizer, group, NVS_F32, g->gradients,
						 &w->error),
		    g->now.added))
		g->lent = true;
}

static void op_add(struct world *w)
{
	size_t group;
	struct modelled *g = any_group(w, &group);
	uint64_t offset, numel = any_range(w, g->numel, &offset), added = UINT64_MAX;
	int rc;

	history_tell("add %s %" PRIu64 " + %" PRIu64, g->name, offset, numel);
	make_floats(w, w->scratch, numel);
	rc = nvs_optimizer_add_gradients(w->optimizer, group, offset, numel, NVS_F32, w->scratch,
					 &added, &w->error);
	result(w, rc, g->lent);
	HOLDS(rc ? added < numel || caused(w, rc) : added == numel);
	HOLDS(added <= numel && (!g->lent || !added));
	for (uint64_t i = 0; i < added; i++)
		g->now.sum[offset + i] += w->scratch[i];
	g->now.added |= added || !rc;
	w->touched = true;
}

static void forget_gradients(struct world *w)
{
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		memset(g->now.sum, 0, g->numel * sizeof(float));
		g->lent = g->now.added = false;
	}
}

static void op_clear(struct world *w)
{
	if (below(&w->random, 4))
		return;
	history_tell("clear");
	HOLDS(!result(w, nvs_optimizer_clear_gradients(w->optimizer, &w->error), false));
	forget_gradients(w);
	w->touched = true;
}

static const float *gradients_of(const struct modelled *g)
{
	return g->lent ? g->gradients : g->now.added ? g->now.sum : NULL;
}

static void op_sum(struct world *w)
{
	struct nvs_gradient_sums sums;
	double due = 0;

	history_tell("sum");
	if (result(w, nvs_optimizer_sum_gradients(w->optimizer, &sums, &w->error), false))
		return;
	for (size_t i = 0; i < w->n; i++) {
		const float *gradients = gradients_of(&w->g[i]);

		for (uint64_t j = 0; gradients && j < w->g[i].numel; j++)
			due += (double)gradients[j] * (double)gradients[j];
	}
	HOLDS(fabs(sums.sum_squares - due) <= 1e-9 * due);
}

/* ---- Steps ---- */

/* What has begun goes on with the rate that it had; nothing may come between. */
static void finish_step(struct world *w, double lr)
{
	for (int i = 0;; i++) {
		struct nvs_step_options options = {.lr = lr};
		struct nvs_step_result step;

		if (i == TRIES)
			history_drive_mend(&w->drive);
		history_tell(i ? "step again" : "step");
		if (!result(w, nvs_optimizer_step(w->optimizer, &options, &step, &w->error),
			    false)) {
			HOLDS(step.step == w->steps && !step.skipped);
			break;
		}
		HOLDS(i < TRIES + TRIES_MENDED);
	}
}

static void op_step(struct world *w)
{
	double lr = 0.001 * (double)(1 + below(&w->random, 100));
	bool any = false;

	for (size_t i = 0; i < w->n; i++)
		any |= gradients_of(&w->g[i]) != NULL;
	if (!any)
		return;
	w->steps++;
	w->touched = true;
	finish_step(w, lr);
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];
		struct nvs_update u = {.group = i, .numel = g->numel, .step = w->steps, .lr = lr};

		u.gradients = gradients_of(g);
		u.master = g->now.part[NVS_MASTER];
		u.exp_avg = g->now.part[NVS_EXP_AVG];
		u.exp_avg_sq = g->now.part[NVS_EXP_AVG_SQ];
		if (!u.gradients)
			continue;
		update(NULL, &u);
		HOLDS(same(g->weights, u.master, g->numel));
		g->weights_known = true;
	}
	forget_gradients(w);
}

/* ---- State ---- */

static bool check_part(struct world *w, size_t group, enum nvs_optimizer_part part, uint64_t offset,
		       uint64_t numel)
{
	const struct modelled *g = &w->g[group];

	history_tell("get %s part %d %" PRIu64 " + %" PRIu64, g->name, (int)part, offset, numel);
	if (result(w,
		   nvs_optimizer_get(w->optimizer, group, part, offset, numel, w->scratch,
				     &w->error),
		   false))
		return false;
	HOLDS(same(w->scratch, g->now.part[part] + offset, numel));
	return true;
}

static void op_get(struct world *w)
{
	size_t group;
	const struct modelled *g = any_group(w, &group);
	uint64_t offset, numel = any_range(w, g->numel, &offset);

	check_part(w, group, (enum nvs_optimizer_part)below(&w->random, PARTS), offset, numel);
}

/* What fails may have set a part of it: it is done again until it has all. */
static void op_set(struct world *w)
{
	size_t group;
	struct modelled *g = any_group(w, &group);
	uint64_t offset, numel = any_range(w, g->numel, &offset);
	enum nvs_optimizer_part part = (enum nvs_optimizer_part)below(&w->random, PARTS);
	int rc = -1;

	make_floats(w, w->scratch, numel);
	for (int i = 0; rc; i++) {
		HOLDS(i < TRIES + TRIES_MENDED);
		if (i == TRIES)
			history_drive_mend(&w->drive);
		history_tell("set %s part %d %" PRIu64 " + %" PRIu64, g->name, (int)part, offset,
			     numel);
		rc = result(w,
			    nvs_optimizer_set(w->optimizer, group, part, offset, numel, w->scratch,
					      &w->error),
			    false);
	}
	memcpy(g->now.part[part] + offset, w->scratch, numel * sizeof(float));
	g->weights_known &= part != NVS_MASTER;
	w->touched = true;
}

static bool get_weights(struct world *w)
{
	int rc;

	history_tell("get_weights");
	rc = result(w, nvs_optimizer_get_weights(w->optimizer, &w->error), false);
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		g->weights_known &= !rc;
		if (!rc)
			HOLDS(same(g->weights, g->now.part[NVS_MASTER], g->numel));
	}
	return !rc;
}

static void op_get_weights(struct world *w)
{
	get_weights(w);
}

static void op_look(struct world *w)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->g[i].weights_known)
			HOLDS(same(w->g[i].weights, w->g[i].now.part[NVS_MASTER], w->g[i].numel));
}

/* ---- Commits, closing and opening ---- */

static void copy_contents(struct contents *to, const struct contents *from, uint64_t numel)
{
	for (int part = 0; part < PARTS; part++)
		memcpy(to->part[part], from->part[part], numel * sizeof(float));
	memcpy(to->sum, from->sum, numel * sizeof(float));
	to->added = from->added;
}

static void committed(struct world *w)
{
	if (!w->config.keep)
		return;
	for (size_t i = 0; i < w->n; i++)
		copy_contents(&w->g[i].committed, &w->g[i].now, w->g[i].numel);
	w->committed_steps = w->steps;
	w->touched = false;
}

static bool commit(struct world *w)
{
	history_tell("commit");
	if (result(w, nvs_optimizer_commit(w->optimizer, &w->error), false))
		return false;
	committed(w);
	return true;
}

static void op_commit(struct world *w)
{
	commit(w);
}

/* As a run begins that finds nothing. */
static void begin_anew(struct world *w)
{
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		memset(g->committed.part[NVS_EXP_AVG], 0, g->numel * sizeof(float));
		memset(g->committed.part[NVS_EXP_AVG_SQ], 0, g->numel * sizeof(float));
		memset(g->committed.sum, 0, g->numel * sizeof(float));
		memcpy(g->committed.part[NVS_MASTER], g->initial, g->numel * sizeof(float));
		g->committed.added = false;
	}
	w->committed_steps = 0;
}

static int open_once(struct world *w)
{
	struct nvs_group_spec specs[GROUPS];
	const struct nvs_optimizer_options options = {update, NULL};

	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		memcpy(g->weights, g->initial, g->numel * sizeof(float));
		specs[i] = (struct nvs_group_spec){g->name, g->numel, NVS_F32, g->weights};
	}
	return optimizer_open_with(&w->optimizer, &w->config, specs, w->n, &options, &engine_sim,
				   w->drive.sim, &w->error);
}

/* What was written in place since the commit is lost. */
static void lose(struct world *w)
{
	if (COPY_ON_WRITE || !w->touched)
		return;
	w->config.rank += 500000;
	begin_anew(w);
}

static void open_optimizer(struct world *w)
{
	int rc = -1;

	for (int i = 0; rc; i++) {
		HOLDS(i < TRIES + TRIES_MENDED);
		if (i == TRIES)
			history_drive_mend(&w->drive);
		history_tell("open");
		rc = result(w, open_once(w), false);
	}
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		copy_contents(&g->now, &g->committed, g->numel);
		g->lent = g->weights_known = false;
	}
	w->steps = w->committed_steps;
	w->touched = false;
}

static void close_well(struct world *w)
{
	history_drive_mend(&w->drive);
	for (int i = 0; w->drive.faulty && !commit(w); i++)
		HOLDS(i < TRIES_MENDED);
	history_tell("close");
	HOLDS(!result(w, nvs_optimizer_close(w->optimizer, &w->error), false));
	committed(w);
}

/* No write succeeds any more, so that what is left is as of the last commit. */
static void close_badly(struct world *w)
{
	history_drive_storm(&w->drive, true, EIO);
	history_tell("close on a drive that writes nothing");
	if (!result(w, nvs_optimizer_close(w->optimizer, &w->error), false))
		committed(w);
	lose(w);
}

static void op_reopen(struct world *w)
{
	if (below(&w->random, 4))
		return;
	if (below(&w->random, 2))
		close_well(w);
	else
		close_badly(w);
	history_drive_calm(&w->drive);
	open_optimizer(w);
}

/* ---- The drive ---- */

static void op_storm(struct world *w)
{
	/* Who asks again for ever gets it no sooner. */
	static const int errors[] = {EIO, EIO, EIO, EIO, ENOSPC, ENOSPC, EAGAIN, EINTR};
	bool writes = below(&w->random, 2);

	if (!w->drive.faulty)
		return;
	if (w->drive.stormy || below(&w->random, 2)) {
		history_tell("all is well again\n");
		history_drive_calm(&w->drive);
		return;
	}
	history_drive_storm(&w->drive, writes, errors[below(&w->random, LENGTH(errors))]);
}

/* On a sound drive all can be had. */
static void check_all(struct world *w)
{
	int tries = 0;

	history_drive_mend(&w->drive);
	for (size_t i = 0; i < w->n; i++)
		for (int part = 0; part < PARTS; part++)
			while (!check_part(w, i, (enum nvs_optimizer_part)part, 0, w->g[i].numel))
				HOLDS(++tries < TRIES_MENDED);
	while (!get_weights(w))
		HOLDS(++tries < TRIES_MENDED);
}

static void op_repair(struct world *w)
{
	if (below(&w->random, 4))
		return;
	check_all(w);
	history_drive_calm(&w->drive);
}

static void (*const operations[])(struct world *w) = {
	op_lend, op_lend, op_lend, op_add,	   op_add,    op_add,	 op_add,   op_clear,
	op_sum,	 op_step, op_step, op_step,	   op_step,   op_get,	 op_get,   op_set,
	op_look, op_set,  op_get,  op_get_weights, op_commit, op_reopen, op_storm, op_repair,
};

static void operation(void *world, uint64_t seed)
{
	struct world *w = world;
	uint64_t before = history_counts()->operations;

	w->random = w->series = seed;
	for (int i = 0; i < 8 && history_counts()->operations == before; i++)
		operations[below(&w->random, LENGTH(operations))](w);
	op_look(w);
}

/* ---- Worlds ---- */

static float *floats(uint64_t numel)
{
	float *data = calloc(numel, sizeof(float));

	HOLDS(data);
	return data;
}

static void make_contents(struct contents *contents, uint64_t numel)
{
	for (int part = 0; part < PARTS; part++)
		contents->part[part] = floats(numel);
	contents->sum = floats(numel);
}

static void free_contents(struct contents *contents)
{
	for (int part = 0; part < PARTS; part++)
		free(contents->part[part]);
	free(contents->sum);
}

static void make_groups(struct world *w)
{
	w->n = 1 + below(&w->random, GROUPS);
	w->longest = 8192; /* what two of the smallest tiles need */
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		snprintf(g->name, sizeof(g->name), "g%zu", i);
		g->numel = 1 + below(&w->random, UINT64_C(1) << (4 + below(&w->random, 11)));
		make_contents(&g->now, g->numel);
		make_contents(&g->committed, g->numel);
		g->initial = floats(g->numel);
		g->weights = floats(g->numel);
		g->gradients = floats(g->numel);
		make_floats(w, g->initial, g->numel);
		if (g->numel > w->longest)
			w->longest = g->numel;
	}
	w->scratch = floats(w->longest);
}

static void configure(struct world *w, const char *directory, uint64_t seed)
{
	struct nvs_config *config = &w->config;

	nvs_config_init(config);
	config->aio.block_size = 4096u << below(&w->random, 4);
	config->aio.queue_depth = 1 + (uint32_t)below(&w->random, 16);
	config->sub_group_size = w->longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 1 + (uint32_t)below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = w->longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].fast_init = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].ratio = below(&w->random, 4) ? 1 : 0.5;
	config->optimizer_max_in_cpu = below(&w->random, 2) ? 0 : below(&w->random, w->longest);
	config->optimizer_threads = 1 + (uint32_t)below(&w->random, 2);
	config->grad_accum_dtype = NVS_F32;
	config->verify = below(&w->random, 2);
	config->keep = below(&w->random, 2);
	/* Each history of a process has stores of its own. */
	config->rank = (uint32_t)(seed % 400000);
	HOLDS(!nvs_config_set_paths(&config->offload[NVS_OFFLOAD_OPTIMIZER], &directory, 1,
				    &w->error));
}

static void *begin_world(const char *directory, uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	HOLDS(w);
	w->random = w->series = seed;
	make_groups(w);
	configure(w, directory, seed);
	history_tell(
		"%zu groups, the longest of %" PRIu64 "%s%s%s%s, ratio %g, in memory %" PRIu64
		"%s%s\n",
		w->n, w->longest,
		w->config.offload[NVS_OFFLOAD_OPTIMIZER].fast_init ? ", fast_init" : "",
		w->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read ? ", pipeline_read" : "",
		w->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write ? ", pipeline_write" : "",
		w->config.optimizer_threads > 1 ? ", two threads" : "",
		w->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio, w->config.optimizer_max_in_cpu,
		w->config.verify ? ", verified" : "", w->config.keep ? ", kept" : "");
	/* What a write has lost in silence no step could be finished with. */
	history_drive_open(&w->drive, next_random(&w->random), false, false);
	begin_anew(w);
	open_optimizer(w);
	return w;
}

static void end_world(void *world)
{
	struct world *w = world;

	check_all(w);
	close_well(w);
	history_drive_close(&w->drive);
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		free_contents(&g->now);
		free_contents(&g->committed);
		free(g->initial);
		free(g->weights);
		free(g->gradients);
	}
	free(w->scratch);
	nvs_config_free(&w->config);
	free(w);
}

const struct history_model history_optim = {"optim", begin_world, operation, end_world};
