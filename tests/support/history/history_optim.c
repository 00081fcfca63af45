/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer against plain arrays: state, weights and gradients must equal the model's after
 * each call, bit for bit, on a drive that fails. Weights and gradients have any element type;
 * gradients overflow, are scaled, clipped and accumulated; system calls of commits fail
 * as well. The model uses the library's loss scaler, which has its own tests, and both use this
 * file's update function.
 */
#include "config/config.h"
#include "optim/optim_fixture.h"
#include "optim/optimizer.h"
#include "optim/step/numbers.h"
#include "support/history/history.h"
#include "support/inject.h"
#include "swap/swap_fixture.h"

#include <math.h>

#define GROUPS	     4
#define TRIES	     3 /* on a drive that fails, before it is repaired */
#define TRIES_MENDED 3 /* after that, while I/Os that were in flight can still fail */

/* The present or the committed contents of a group. */
struct contents {
	float *part[PARTS]; /* enum nvs_optimizer_part */
	float *sum;	    /* sum of the gradients that were added */
	bool added;
};

struct modelled {
	char name[24];
	uint64_t numel;
	struct contents now, committed;
	enum nvs_dtype dtype; /* type of `weights` */
	float *initial;
	void *weights;
	float *gradients; /* the values of `lent_data` */
	void *lent_data;
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
	float *scratch; /* numel of the longest group */
	void *typed;	/* the same number of elements, of any type */
	struct scaler scaler, committed_scaler;
	uint64_t random, longest, series;
	uint64_t steps, committed_steps;
	bool undurable; /* a sync has failed, so any commit can fail */
};

/* ---- Shared by the operations ---- */

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

static void put_typed(enum nvs_dtype dtype, void *array, const float *values, uint64_t numel)
{
	for (uint64_t i = 0; i < numel; i++)
		element_put(dtype, array, i, element_rounded(dtype, values[i]));
}

static bool has_weights(const struct modelled *g, const float *values)
{
	for (uint64_t i = 0; i < g->numel; i++)
		if (element_get(g->dtype, g->weights, i) != element_rounded(g->dtype, values[i]))
			return false;
	return true;
}

static enum nvs_dtype any_dtype(struct world *w)
{
	static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

	return dtypes[below(&w->random, LENGTH(dtypes))];
}

/* Makes gradients of the type, scaled by the loss scale; with fp16, one may overflow. */
static enum nvs_dtype make_gradients(struct world *w, float *values, void *typed, uint64_t numel)
{
	enum nvs_dtype dtype = any_dtype(w);

	make_floats(w, values, numel);
	for (uint64_t i = 0; i < numel; i++)
		values[i] = (float)element_rounded(dtype, (double)values[i] * w->scaler.scale);
	if (w->config.fp16.enabled && !below(&w->random, 6))
		values[below(&w->random, numel)] = INFINITY;
	put_typed(dtype, typed, values, numel);
	return dtype;
}

/* ---- Calls ---- */

static bool caused(const struct world *w, int rc)
{
	return history_drive_caused(&w->drive, rc) || (w->undurable && rc == -EIO);
}

/* The call must return 0, -EBUSY if `busy`, or an error that the drive caused. */
static int result(struct world *w, int rc, bool busy)
{
	history_log_more(": %s%s%s\n", rc ? nvs_strerror(rc) : "ok", rc ? ": " : "",
			 rc ? w->error.text : "");
	if (busy)
		HOLDS(rc == -EBUSY);
	else
		HOLDS(!rc || caused(w, rc));
	if (rc) {
		HOLDS(w->error.code == rc && w->error.text[0]);
		history_counts()->errors += caused(w, rc);
	}
	w->error = (struct nvs_error){.size = sizeof(w->error)};
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
	enum nvs_dtype dtype = NVS_F32;

	if (!g->now.added)
		dtype = make_gradients(w, g->gradients, g->lent_data, g->numel);
	history_log("lend %s of %s", g->name, nvs_dtype_name(dtype));
	if (!result(w,
		    nvs_optimizer_lend_gradients(w->optimizer, group, dtype, g->lent_data,
						 &w->error),
		    g->now.added))
		g->lent = true;
}

static void op_add(struct world *w)
{
	size_t group;
	struct modelled *g = any_group(w, &group);
	uint64_t offset, numel = any_range(w, g->numel, &offset), added = UINT64_MAX;
	enum nvs_dtype dtype = make_gradients(w, w->scratch, w->typed, numel);
	int rc;

	history_log("add %s %" PRIu64 " + %" PRIu64 " of %s", g->name, offset, numel,
		    nvs_dtype_name(dtype));
	rc = nvs_optimizer_add_gradients(w->optimizer, group, offset, numel, dtype, w->typed,
					 &added, &w->error);
	result(w, rc, g->lent);
	HOLDS(rc ? added < numel || caused(w, rc) : added == numel);
	HOLDS(added <= numel && (!g->lent || !added));
	/* The sum is rounded to fp32, and then to the type of the accumulated gradients. */
	for (uint64_t i = 0; i < added; i++) {
		float *sum = &g->now.sum[offset + i];

		*sum = (float)element_rounded(w->config.grad_accum_dtype, *sum + w->scratch[i]);
	}
	g->now.added |= added || !rc;
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
	history_log("clear");
	HOLDS(!result(w, nvs_optimizer_clear_gradients(w->optimizer, &w->error), false));
	forget_gradients(w);
}

static const float *gradients_of(const struct modelled *g)
{
	return g->lent ? g->gradients : g->now.added ? g->now.sum : NULL;
}

static double sum_squares(const struct world *w)
{
	double sum = 0;

	for (size_t i = 0; i < w->n; i++) {
		const float *gradients = gradients_of(&w->g[i]);

		for (uint64_t j = 0; gradients && j < w->g[i].numel; j++)
			sum += (double)gradients[j] * (double)gradients[j];
	}
	return sum;
}

static bool is_near(double value, double due)
{
	return isfinite(due) ? fabs(value - due) <= 1e-9 * due : !isfinite(value);
}

static void op_sum(struct world *w)
{
	struct nvs_gradient_sums sums = {.size = sizeof(sums)};

	history_log("sum");
	if (!result(w, nvs_optimizer_sum_gradients(w->optimizer, &sums, &w->error), false))
		HOLDS(is_near(sums.sum_squares, sum_squares(w)));
}

/* ---- Steps ---- */

/* The expected outcome of a step. */
struct due {
	double lr, norm;
	bool skipped;
	int rc; /* -ERANGE if the step is skipped */
	double clip;
};

static struct due step_due(struct world *w, double lr)
{
	const struct nvs_config *config = &w->config;
	double sum = sum_squares(w), over;
	struct due due = {.lr = lr, .norm = sqrt(sum) / w->scaler.scale, .clip = 1};

	due.skipped = config->fp16.enabled && !isfinite(sum);
	if (due.skipped) {
		due.rc = scaler_update(&w->scaler, &config->fp16, true);
		return due;
	}
	over = (due.norm + 1e-6) / config->gradient_clipping;
	if (config->gradient_clipping > 0 && over > 1)
		due.clip = 1 / over;
	return due;
}

static void check_step(const struct world *w, const struct due *due,
		       const struct nvs_step_result *step)
{
	HOLDS(step->step == w->steps && step->skipped == due->skipped);
	HOLDS(due->skipped || step->norm < 0 || is_near(step->norm, due->norm));
	HOLDS(due->skipped || is_near(step->clip, due->clip));
}

/*
 * A step that has begun keeps its learning rate and factors; the model uses the library's factor.
 */
static void finish_step(struct world *w, struct due *due)
{
	const struct nvs_step_options options = {
		.size = sizeof(options), .lr = due->lr, .norm = below(&w->random, 2)};
	int rc = -EIO;

	for (int i = 0; rc; i++) {
		struct nvs_step_result step = {.size = sizeof(step)};

		if (i == TRIES)
			history_drive_mend(&w->drive);
		history_log(i ? "step again" : "step");
		rc = nvs_optimizer_step(w->optimizer, &options, &step, &w->error);
		if (due->rc && rc == due->rc) {
			history_log_more(": %s\n", w->error.text);
			w->error = (struct nvs_error){.size = sizeof(w->error)};
			check_step(w, due, &step);
			return;
		}
		if (!result(w, rc, false)) {
			check_step(w, due, &step);
			due->clip = step.clip;
		}
		HOLDS(i < TRIES + TRIES_MENDED);
	}
}

static void step_group(struct world *w, size_t i, double lr, float factor)
{
	struct modelled *g = &w->g[i];
	const float *gradients = gradients_of(g);
	struct nvs_update u = {.group = i,
			       .numel = g->numel,
			       .step = w->steps,
			       .lr = lr,
			       .gradients = w->scratch,
			       .master = g->now.part[NVS_MASTER],
			       .exp_avg = g->now.part[NVS_EXP_AVG],
			       .exp_avg_sq = g->now.part[NVS_EXP_AVG_SQ]};

	if (!gradients)
		return;
	for (uint64_t j = 0; j < g->numel; j++)
		w->scratch[j] = gradients[j] * factor;
	update(NULL, &u);
	HOLDS(has_weights(g, u.master));
	g->weights_known = true;
}

static void op_step(struct world *w)
{
	double lr = 0.001 * (double)(1 + below(&w->random, 100)), scale = w->scaler.scale;
	struct due due;
	bool any = false;

	for (size_t i = 0; i < w->n; i++)
		any |= gradients_of(&w->g[i]) != NULL;
	if (!any)
		return;
	due = step_due(w, lr);
	w->steps += !due.skipped;
	finish_step(w, &due);
	for (size_t i = 0; i < w->n && !due.skipped; i++)
		step_group(w, i, lr, (float)(due.clip / scale));
	if (!due.skipped)
		HOLDS(!scaler_update(&w->scaler, &w->config.fp16, false));
	HOLDS(nvs_optimizer_loss_scale(w->optimizer) == w->scaler.scale);
	forget_gradients(w);
}

/* ---- State ---- */

static bool check_part(struct world *w, size_t group, enum nvs_optimizer_part part, uint64_t offset,
		       uint64_t numel)
{
	const struct modelled *g = &w->g[group];

	history_log("get %s part %d %" PRIu64 " + %" PRIu64, g->name, (int)part, offset, numel);
	if (result(w,
		   nvs_optimizer_get(w->optimizer, group, part, offset, numel, w->scratch,
				     &w->error),
		   false))
		return false;
	HOLDS(!memcmp(w->scratch, g->now.part[part] + offset, numel * sizeof(float)));
	return true;
}

static void op_get(struct world *w)
{
	size_t group;
	const struct modelled *g = any_group(w, &group);
	uint64_t offset, numel = any_range(w, g->numel, &offset);

	check_part(w, group, (enum nvs_optimizer_part)below(&w->random, PARTS), offset, numel);
}

/* A failed call may have set a part; repeat it until it has set everything. */
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
		history_log("set %s part %d %" PRIu64 " + %" PRIu64, g->name, (int)part, offset,
			    numel);
		rc = result(w,
			    nvs_optimizer_set(w->optimizer, group, part, offset, numel, w->scratch,
					      &w->error),
			    false);
	}
	memcpy(g->now.part[part] + offset, w->scratch, numel * sizeof(float));
	g->weights_known &= part != NVS_MASTER;
}

static bool get_weights(struct world *w)
{
	int rc;

	history_log("get_weights");
	rc = result(w, nvs_optimizer_get_weights(w->optimizer, &w->error), false);
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		g->weights_known &= !rc;
		if (!rc)
			HOLDS(has_weights(g, g->now.part[NVS_MASTER]));
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
			HOLDS(has_weights(&w->g[i], w->g[i].now.part[NVS_MASTER]));
}

/* ---- Commits, closing and opening ---- */

static void copy_contents(struct contents *to, const struct contents *from, uint64_t numel)
{
	for (unsigned part = 0; part < PARTS; part++)
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
	w->committed_scaler = w->scaler;
}

static bool commit(struct world *w)
{
	history_log("commit");
	if (result(w, nvs_optimizer_commit(w->optimizer, &w->error), false))
		return false;
	committed(w);
	return true;
}

static void op_commit(struct world *w)
{
	commit(w);
}

/* One system call fails: either the commit took effect or the previous one still holds. */
static void op_commit_failing(struct world *w)
{
	uint64_t failed;
	int rc;

	history_log("commit with a failing call");
	inject_fail(INJECT_FILES, 1 + below(&w->random, 6), 1, EIO);
	rc = nvs_optimizer_commit(w->optimizer, &w->error);
	inject_stop(&failed);
	w->undurable |= failed && rc;
	if (!result(w, rc, false))
		committed(w);
}

/* Resets the model to that of a run with an empty store. */
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
	w->committed_scaler = scaler_init(&w->config.fp16);
}

static int open_once(struct world *w)
{
	struct nvs_group_spec specs[GROUPS];
	const struct nvs_optimizer_options options = {.size = sizeof(options), .update = update};

	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		put_typed(g->dtype, g->weights, g->initial, g->numel);
		specs[i] = (struct nvs_group_spec){sizeof(struct nvs_group_spec), g->name, g->numel,
						   g->dtype, g->weights};
	}
	return optimizer_open_with(&w->optimizer, &w->config, specs, w->n, &options, &engine_sim,
				   w->drive.sim, &w->error);
}

static void open_optimizer(struct world *w)
{
	int rc = -1;

	for (int i = 0; rc; i++) {
		HOLDS(i < TRIES + TRIES_MENDED);
		if (i == TRIES)
			history_drive_mend(&w->drive);
		history_log("open");
		rc = result(w, open_once(w), false);
	}
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		copy_contents(&g->now, &g->committed, g->numel);
		g->lent = g->weights_known = false;
	}
	w->steps = w->committed_steps;
	w->scaler = w->committed_scaler;
	w->undurable = false;
	HOLDS(nvs_optimizer_loss_scale(w->optimizer) == w->scaler.scale);
}

static void close_well(struct world *w)
{
	history_drive_mend(&w->drive);
	for (int i = 0; w->drive.faulty && !w->undurable && !commit(w); i++)
		HOLDS(i < TRIES_MENDED);
	history_log("close");
	if (result(w, nvs_optimizer_close(w->optimizer, &w->error), false))
		HOLDS(w->undurable);
	else
		committed(w);
}

static void op_reopen(struct world *w)
{
	if (below(&w->random, 4))
		return;
	if (below(&w->random, 2)) {
		close_well(w);
	} else {
		/* All writes fail from here on, so the store keeps the state of the last commit. */
		history_drive_storm(&w->drive, true, EIO);
		history_log("close on a drive that writes nothing");
		if (!result(w, nvs_optimizer_close(w->optimizer, &w->error), false))
			committed(w);
	}
	history_drive_calm(&w->drive);
	open_optimizer(w);
}

/* ---- The drive ---- */

static void op_storm(struct world *w)
{
	history_drive_change(&w->drive, &w->random);
}

/* On a drive without faults, everything is readable. */
static void check_all(struct world *w)
{
	int tries = 0;

	history_drive_mend(&w->drive);
	for (size_t i = 0; i < w->n; i++)
		for (unsigned part = 0; part < PARTS; part++)
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
	op_lend,   op_lend,   op_lend,	op_add,	   op_add,
	op_add,	   op_add,    op_clear, op_sum,	   op_step,
	op_step,   op_step,   op_step,	op_get,	   op_get,
	op_set,	   op_look,   op_set,	op_get,	   op_get_weights,
	op_commit, op_reopen, op_storm, op_repair, op_commit_failing,
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
	for (unsigned part = 0; part < PARTS; part++)
		contents->part[part] = floats(numel);
	contents->sum = floats(numel);
}

static void free_contents(struct contents *contents)
{
	for (unsigned part = 0; part < PARTS; part++)
		free(contents->part[part]);
	free(contents->sum);
}

static void make_groups(struct world *w)
{
	w->n = 1 + below(&w->random, GROUPS);
	w->longest = 8192; /* minimum for two tiles */
	for (size_t i = 0; i < w->n; i++) {
		struct modelled *g = &w->g[i];

		snprintf(g->name, sizeof(g->name), "g%zu", i);
		g->numel = 1 + below(&w->random, UINT64_C(1) << (4 + below(&w->random, 11)));
		make_contents(&g->now, g->numel);
		make_contents(&g->committed, g->numel);
		g->initial = floats(g->numel);
		g->weights = floats(g->numel);
		g->gradients = floats(g->numel);
		g->lent_data = floats(g->numel);
		g->dtype = any_dtype(w);
		make_floats(w, g->initial, g->numel);
		for (uint64_t j = 0; j < g->numel; j++)
			g->initial[j] = (float)element_rounded(g->dtype, g->initial[j]);
		if (g->numel > w->longest)
			w->longest = g->numel;
	}
	w->scratch = floats(w->longest);
	w->typed = floats(w->longest);
}

static void configure(struct world *w, const char *directory, uint64_t seed)
{
	struct nvs_config *config = &w->config;

	config_init(config);
	config->aio.block_size = 4096u << below(&w->random, 4);
	config->aio.queue_depth = 1 + (uint32_t)below(&w->random, 16);
	config->aio.thread_count = 1 + (uint32_t)below(&w->random, 3);
	config->sub_group_size = w->longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 1 + (uint32_t)below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = w->longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].fast_init = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write = below(&w->random, 2);
	config->offload[NVS_OFFLOAD_OPTIMIZER].ratio = below(&w->random, 4) ? 1 : 0.5;
	config->optimizer_max_in_cpu = below(&w->random, 2) ? 0 : below(&w->random, w->longest);
	config->optimizer_threads = 1 + (uint32_t)below(&w->random, 2);
	/* The scale rises and falls within a history, and can reach its minimum. */
	config->grad_accum_dtype = any_dtype(w);
	config->gradient_clipping = below(&w->random, 2) ? 0 : 1 + (double)below(&w->random, 40);
	config->fp16.enabled = below(&w->random, 2);
	config->fp16.loss_scale = below(&w->random, 3) ? 0 : 128;
	config->fp16.initial_scale_power = (uint32_t)below(&w->random, 6);
	config->fp16.loss_scale_window = 1 + (uint32_t)below(&w->random, 8);
	config->fp16.hysteresis = 1 + (uint32_t)below(&w->random, 3);
	config->fp16.consecutive_hysteresis = below(&w->random, 2);
	config->fp16.min_loss_scale = 1;
	config->verify = below(&w->random, 2);
	config->keep = below(&w->random, 2);
	/* Each history of a process has its own stores. */
	config->rank = (uint32_t)(seed % 400000);
	HOLDS(!nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER, &directory, 1, &w->error));
}

static void *begin_world(const struct history_model *model, const char *directory, uint64_t seed)
{
	struct world *w = calloc(1, sizeof(*w));

	(void)model;
	HOLDS(w);
	w->error.size = sizeof(w->error);
	w->random = w->series = seed;
	make_groups(w);
	configure(w, directory, seed);
	history_log("%zu groups, the longest of %" PRIu64 "%s%s%s%s, ratio %g, in memory %" PRIu64
		    "%s%s, %u workers, gradients of %s%s, clipped at %g\n",
		    w->n, w->longest,
		    w->config.offload[NVS_OFFLOAD_OPTIMIZER].fast_init ? ", fast_init" : "",
		    w->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read ? ", pipeline_read" : "",
		    w->config.offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write ? ", pipeline_write"
									    : "",
		    w->config.optimizer_threads > 1 ? ", two threads" : "",
		    w->config.offload[NVS_OFFLOAD_OPTIMIZER].ratio, w->config.optimizer_max_in_cpu,
		    w->config.verify ? ", verified" : "", w->config.keep ? ", kept" : "",
		    w->config.aio.thread_count, nvs_dtype_name(w->config.grad_accum_dtype),
		    w->config.fp16.enabled ? " and scaled" : "", w->config.gradient_clipping);
	/* No silent faults: a lost write would make steps impossible to finish. */
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
		free(g->lent_data);
	}
	free(w->scratch);
	free(w->typed);
	config_free(&w->config);
	free(w);
}

const struct history_model history_optim = {"optim", begin_world, operation, end_world, false};
