/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bounds are a running error analysis. An fp32 operation is off by at most half a unit in the
 * last place, EPSILON of its result; each quantity's bound adds those of its operands, and EPSILON
 * for each operation and each constant that fp32 rounds. Twice the bound is allowed, for
 * second-order terms. So the bound grows with the steps as rounding does, and no faster: a moment
 * that is off by a thousandth is found after one step and after a thousand.
 */
#include "cli/modes/model/reference.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/modes/model/random.h"
#include "cli/settings.h"

#define EPSILON	  0x1p-24
#define UNDERFLOW 0x1p-126 /* below this, fp32 loses precision */
#define RUNS	  4u	   /* runs in a group */
#define RUN_NUMEL 4096u
#define SAMPLE_NUMEL                                                                               \
	(1u << 20) /* elements of all groups together, unless that is less than one of each run */

/* A value in double, and the maximum error of its fp32 counterpart. */
struct bounded {
	double is, off;
};

struct element {
	struct bounded master, exp_avg, exp_avg_sq;
};

struct sample {
	size_t group;
	uint64_t offset, numel;
	struct element *elements;
};

/* One run in each quarter of the group; the first and the last are at its ends. */
static int take_samples(struct reference *reference, size_t group, uint64_t run_numel)
{
	const struct parameters *parameters = reference->parameters;
	const void *weights = parameters_at(parameters, parameters->weights, group);
	uint64_t whole = parameters_group_numel(parameters, group);
	uint64_t quarter = whole / RUNS, most = quarter ? quarter : whole;
	uint64_t numel = run_numel < most ? run_numel : most;
	uint64_t state = parameters->seed + group, room = most - numel + 1;
	const uint64_t offsets[RUNS] = {0, quarter + spread(&state) % room,
					2 * quarter + spread(&state) % room, whole - numel};

	for (unsigned i = 0; i < (quarter ? RUNS : 1); i++) {
		struct sample *sample = &reference->samples[reference->nsamples++];

		*sample = (struct sample){.group = group,
					  .offset = offsets[i],
					  .numel = numel,
					  .elements = calloc(numel, sizeof(struct element))};
		if (!sample->elements)
			return -ENOMEM;
		reference->nbytes += numel * sizeof(struct element);
		for (uint64_t e = 0; e < numel; e++)
			sample->elements[e].master.is = parameters_value(parameters, weights,
									 sample->offset + e);
	}
	return 0;
}

int reference_open(struct reference *reference, const struct parameters *parameters,
		   const struct nvs_config *config, struct nvs_error *error)
{
	uint64_t run_numel = SAMPLE_NUMEL / RUNS / parameters->ngroups;
	int rc = 0;

	*reference = (struct reference){
		.parameters = parameters,
		.adam = {.lr = setting_real(config, "optimizer.params.lr"),
			 .beta1 = setting_real(config, "optimizer.params.betas.0"),
			 .beta2 = setting_real(config, "optimizer.params.betas.1"),
			 .eps = setting_real(config, "optimizer.params.eps"),
			 .weight_decay = setting_real(config, "optimizer.params.weight_decay"),
			 .bias_correction = setting_number(config,
							   "optimizer.params.bias_correction"),
			 .adam_w_mode = setting_number(config, "optimizer.params.adam_w_mode")},
		.clipping = setting_real(config, "gradient_clipping"),
		.norm = -1,
		.difference = {.size = sizeof(reference->difference)},
		.samples = calloc(RUNS * parameters->ngroups, sizeof(struct sample))};
	if (!reference->samples)
		rc = -ENOMEM;
	if (run_numel > RUN_NUMEL)
		run_numel = RUN_NUMEL;
	for (size_t group = 0; group < parameters->ngroups && !rc; group++)
		rc = take_samples(reference, group, run_numel ? run_numel : 1);
	return rc ? error_set(error, rc, "no memory for the reference of --verify: leave it out")
		  : 0;
}

void reference_close(struct reference *reference)
{
	for (size_t i = 0; i < reference->nsamples; i++)
		free(reference->samples[i].elements);
	free(reference->samples);
	*reference = (struct reference){0};
}

static double gradients_norm(const struct parameters *parameters)
{
	double sum = 0;

	for (uint64_t i = 0; i < parameters->numel; i++) {
		double value = parameters_value(parameters, parameters->gradients, i);

		sum += value * value;
	}
	return sqrt(sum);
}

/* The factor that clips gradients with this loss scale. */
static double clip(struct reference *reference, double loss_scale)
{
	double norm;

	if (reference->clipping <= 0)
		return 1;
	if (reference->norm < 0)
		reference->norm = gradients_norm(reference->parameters);
	norm = reference->norm / loss_scale;
	return norm > reference->clipping ? reference->clipping / (norm + 1e-6) : 1;
}

/* Factors of one step, named as in the Adam paper. */
struct factors {
	double gradient, decay, beta1, beta2, eps, step_size, root;
	bool decoupled;
};

static struct factors step_factors(const struct reference *reference, double gradient)
{
	const struct reference_adam *adam = &reference->adam;
	double steps = (double)reference->steps;
	bool correct = adam->bias_correction;

	return (struct factors){
		.gradient = gradient,
		.decay = adam->adam_w_mode ? adam->lr * adam->weight_decay : adam->weight_decay,
		.beta1 = adam->beta1,
		.beta2 = adam->beta2,
		.eps = adam->eps,
		.step_size = correct ? adam->lr / (1 - pow(adam->beta1, steps)) : adam->lr,
		.root = correct ? 1 / sqrt(1 - pow(adam->beta2, steps)) : 1,
		.decoupled = adam->adam_w_mode};
}

/* beta * old + (1 - beta) * new: three operations and two rounded constants. */
static struct bounded average(double beta, struct bounded old, struct bounded new)
{
	double from_old = beta * old.is, from_new = (1 - beta) * new.is;

	return (struct bounded){.is = from_old + from_new,
				.off = beta * old.off + (1 - beta) * new.off + UNDERFLOW +
				       3 * EPSILON *(fabs(from_old) + fabs(from_new))};
}

static void step_element(const struct factors *by, double gradient, struct element *element)
{
	struct bounded *master = &element->master;
	struct bounded g = {.is = gradient * by->gradient}, square;
	double root, denominator, change, decayed = by->decay * master->is;

	g.off = 2 * EPSILON * fabs(g.is);
	if (!by->decoupled && by->decay != 0) {
		g.off += by->decay * master->off + 3 * EPSILON * (fabs(decayed) + fabs(g.is));
		g.is += decayed;
	}
	square = (struct bounded){.is = g.is * g.is,
				  .off = 2 * fabs(g.is) * g.off + EPSILON * g.is * g.is};
	element->exp_avg = average(by->beta1, element->exp_avg, g);
	element->exp_avg_sq = average(by->beta2, element->exp_avg_sq, square);
	if (by->decoupled) {
		master->off += by->decay * master->off +
			       EPSILON * (3 * fabs(decayed) + fabs(master->is));
		master->is -= decayed;
	}
	root = sqrt(element->exp_avg_sq.is);
	denominator = root * by->root + by->eps;
	change = by->step_size * element->exp_avg.is / denominator;
	master->is -= change;
	master->off += by->step_size * element->exp_avg.off / denominator +
		       EPSILON * (8 * fabs(change) + fabs(master->is));
	if (root > 0)
		master->off += fabs(change) * element->exp_avg_sq.off * by->root /
			       (2 * root * denominator);
}

int reference_step(struct reference *reference, const struct nvs_step_result *done,
		   struct nvs_error *error)
{
	const struct parameters *parameters = reference->parameters;
	double clipped = clip(reference, done->loss_scale);
	struct factors by;

	if (done->skipped)
		return 0;
	if (!(fabs(done->clip - clipped) <= 1e-6 * clipped))
		return error_set(error, -EBADMSG,
				 "step %llu clipped the gradients by %.9g instead of %.9g",
				 (unsigned long long)done->step, done->clip, clipped);
	reference->steps++;
	by = step_factors(reference, clipped / done->loss_scale);
	for (size_t i = 0; i < reference->nsamples; i++) {
		const struct sample *sample = &reference->samples[i];
		const void *gradients = parameters_at(parameters, parameters->gradients,
						      sample->group);

		for (uint64_t e = 0; e < sample->numel; e++)
			step_element(&by,
				     parameters_value(parameters, gradients, sample->offset + e),
				     &sample->elements[e]);
	}
	return 0;
}

static void note_difference(struct reference *reference, const struct sample *sample,
			    uint64_t element, const char *what, double found, struct bounded due)
{
	if (reference->differences++)
		return;
	error_set(&reference->difference, -EBADMSG,
		  "%s %llu of group %zu is %.9g after %llu steps and should be %.9g, give or take "
		  "%.2g",
		  what, (unsigned long long)(sample->offset + element), sample->group, found,
		  (unsigned long long)reference->steps, due.is, due.off);
}

/* A NaN is a difference. */
static bool differs(double found, struct bounded due)
{
	return !(fabs(found - due.is) <= due.off);
}

static int compare_part(struct reference *reference, struct nvs_optimizer *optimizer,
			const struct sample *sample, enum nvs_optimizer_part part, float *found,
			struct nvs_error *error)
{
	static const char *const names[] = {[NVS_MASTER] = "master weight",
					    [NVS_EXP_AVG] = "exp_avg",
					    [NVS_EXP_AVG_SQ] = "exp_avg_sq"};
	int rc = nvs_optimizer_get(optimizer, sample->group, part, sample->offset, sample->numel,
				   found, error);

	for (uint64_t e = 0; e < sample->numel && !rc; e++) {
		const struct element *element = &sample->elements[e];
		struct bounded due = part == NVS_MASTER	   ? element->master
				     : part == NVS_EXP_AVG ? element->exp_avg
							   : element->exp_avg_sq;

		due.off = 2 * due.off;
		if (differs(found[e], due))
			note_difference(reference, sample, e, names[part], found[e], due);
	}
	return rc;
}

static void compare_weights(struct reference *reference, const struct sample *sample,
			    const float *master)
{
	const struct parameters *parameters = reference->parameters;
	const void *weights = parameters_at(parameters, parameters->weights, sample->group);

	for (uint64_t e = 0; e < sample->numel; e++) {
		double found = parameters_value(parameters, weights, sample->offset + e);
		struct bounded due = {.is = master[e],
				      .off = parameters_rounding(parameters, master[e])};

		if (differs(found, due))
			note_difference(reference, sample, e, "weight", found, due);
	}
}

int reference_compare(struct reference *reference, struct nvs_optimizer *optimizer,
		      struct nvs_error *error)
{
	static float found[RUN_NUMEL];
	int rc = 0;

	for (size_t i = 0; i < reference->nsamples && !rc; i++) {
		const struct sample *sample = &reference->samples[i];

		for (int part = NVS_EXP_AVG_SQ; part >= NVS_MASTER && !rc; part--)
			rc = compare_part(reference, optimizer, sample,
					  (enum nvs_optimizer_part)part, found, error);
		if (rc)
			break;
		compare_weights(reference, sample, found);
		reference->compared += sample->numel;
	}
	if (rc || !reference->differences)
		return rc;
	*error = reference->difference;
	return -EBADMSG;
}
