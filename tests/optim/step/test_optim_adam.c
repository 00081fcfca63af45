/* SPDX-License-Identifier: Apache-2.0 */
/* nvs_adam_update: the same bits as the optimizer's steps, and its refusals. */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <math.h>

#include "config/config.h"
#include "support/inject.h"
#include "support/tests.h"

ONE_OPTIMIZER

#define NUMEL 5003u

static const enum nvs_dtype dtypes[] = {NVS_F32, NVS_BF16, NVS_F16};

struct arrays {
	float master[NUMEL], exp_avg[NUMEL], exp_avg_sq[NUMEL], weights[NUMEL];
};

static struct nvs_adam_update update_of(struct arrays *arrays, uint64_t step)
{
	const struct optimizer_config *adam = &o->config.adam;

	return (struct nvs_adam_update){
		.size = sizeof(struct nvs_adam_update),
		.numel = NUMEL,
		.step = step,
		.lr = optim_lr(step),
		.beta1 = adam->beta1,
		.beta2 = adam->beta2,
		.eps = adam->eps,
		.weight_decay = adam->weight_decay,
		.adam_w_mode = adam->adam_w_mode || !strcmp(adam->type, "AdamW"),
		.bias_correction = adam->bias_correction,
		.gradients = o->gradients[0],
		.gradients_dtype = o->gradients_dtype,
		.master = arrays->master,
		.exp_avg = arrays->exp_avg,
		.exp_avg_sq = arrays->exp_avg_sq,
		.weights = arrays->weights,
		.weights_dtype = o->specs[0].dtype,
	};
}

static void is_as_arrays(const struct arrays *arrays)
{
	struct snapshot now;

	snapshot_take(o, &now);
	assert_memory_equal(now.parts[0][NVS_MASTER], arrays->master, sizeof(arrays->master));
	assert_memory_equal(now.parts[0][NVS_EXP_AVG], arrays->exp_avg, sizeof(arrays->exp_avg));
	assert_memory_equal(now.parts[0][NVS_EXP_AVG_SQ], arrays->exp_avg_sq,
			    sizeof(arrays->exp_avg_sq));
	assert_memory_equal(now.weights[0], arrays->weights,
			    NUMEL * nvs_dtype_size(o->specs[0].dtype));
	snapshot_free(&now);
}

static void follows(double clipping)
{
	static struct arrays arrays;

	memset(&arrays, 0, sizeof(arrays));
	for (size_t i = 0; i < NUMEL; i++)
		arrays.master[i] = (float)element_get(o->specs[0].dtype, o->specs[0].weights, i);
	o->offload->device = NVS_DEVICE_CPU;
	o->config.gradient_clipping = clipping;
	DONE(o, optim_open(o));
	for (uint64_t step = 1; step <= 3; step++) {
		struct nvs_adam_update update = update_of(&arrays, step);

		optim_run(o, step, step);
		update.grad_factor = o->result.clip;
		/* The update allocates nothing. */
		inject_fail(INJECT_MEMORY | INJECT_MMAP, 0, 0, ENOMEM);
		DONE(o, nvs_adam_update(&update, &o->error));
		assert_int_equal(inject_stop(NULL), 0);
	}
	is_as_arrays(&arrays);
}

TEST(an_update_gives_the_bits_of_the_optimizer)
{
	for (size_t weights = 0; weights < 3; weights++)
		for (size_t gradients = 0; gradients < 3; gradients++) {
			const struct group group = {"a", NUMEL, dtypes[weights]};

			optim_renew(o, &group, 1);
			o->gradients_dtype = dtypes[gradients];
			o->config.adam.bias_correction = gradients != 1;
			if (weights == 1)
				strcpy(o->config.adam.type, "Adam");
			o->config.adam.adam_w_mode = weights != 1;
			follows(gradients == 2 ? 0.5 : 0);
		}
}

/* One array at a time begins a byte behind an element. */
TEST(arrays_that_are_not_aligned_are_refused)
{
	static struct arrays arrays, before;
	static const char *const names[] = {"master is", "exp_avg is", "exp_avg_sq is",
					    "gradients is", "weights is"};
	const struct group group = {"a", NUMEL, NVS_BF16};

	optim_renew(o, &group, 1);
	o->gradients_dtype = NVS_F16;
	for (unsigned i = 0; i < LENGTH(names); i++) {
		struct nvs_adam_update update = update_of(&arrays, 1);
		char *arrays_of[] = {(char *)update.master, (char *)update.exp_avg,
				     (char *)update.exp_avg_sq, o->gradients[0], update.weights};

		arrays_of[i]++;
		update.numel--;
		update.master = (float *)(uintptr_t)arrays_of[0];
		update.exp_avg = (float *)(uintptr_t)arrays_of[1];
		update.exp_avg_sq = (float *)(uintptr_t)arrays_of[2];
		update.gradients = arrays_of[3];
		update.weights = arrays_of[4];
		REFUSED(o, nvs_adam_update(&update, &o->error), -EINVAL, names[i]);
	}
	assert_memory_equal(&before, &arrays, sizeof(arrays));
}
