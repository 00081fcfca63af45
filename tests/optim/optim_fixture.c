/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups, elements and snapshots for the tests of the optimizer. Element types are rounded and
 * encoded here by arithmetic on doubles, independent of the library's kernels.
 */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

#include "config/config.h"
#include "optim/optimizer.h"

/* ---- Elements ---- */

struct format {
	int mantissa, least; /* mantissa bits; exponent of the smallest normal number */
	double max;
};

static struct format format_of(enum nvs_dtype dtype)
{
	switch (dtype) {
	case NVS_F16:
		return (struct format){10, -14, 65504};
	case NVS_BF16:
		return (struct format){7, -126, 0x1.fep127};
	default:
		return (struct format){23, -126, 0x1.fffffep127};
	}
}

double element_rounded(enum nvs_dtype dtype, double value)
{
	struct format format = format_of(dtype);
	double ulp, rounded;
	int exponent;

	if (value == 0 || !isfinite(value))
		return value;
	exponent = ilogb(value);
	if (exponent < format.least)
		exponent = format.least;
	ulp = ldexp(1, exponent - format.mantissa);
	rounded = nearbyint(value / ulp) * ulp;
	return fabs(rounded) > format.max ? copysign(INFINITY, value) : rounded;
}

static uint16_t f16_bits(double value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	double size = fabs(value);
	int exponent;

	if (isnan(value))
		return 0x7e00;
	if (isinf(value))
		return sign | 0x7c00;
	if (size < 0x1p-14)
		return sign | (uint16_t)(size * 0x1p24);
	exponent = ilogb(size);
	return (uint16_t)(sign | ((exponent + 15) << 10) |
			  (int)((ldexp(size, -exponent) - 1) * 1024));
}

static double f16_value(uint16_t bits)
{
	int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
	double size;

	if (exponent == 31)
		size = mantissa ? NAN : INFINITY;
	else if (!exponent)
		size = ldexp(mantissa, -24);
	else
		size = ldexp(1024 + mantissa, exponent - 25);
	return bits & 0x8000 ? -size : size;
}

void element_put(enum nvs_dtype dtype, void *array, uint64_t index, double value)
{
	float single = (float)value;
	uint32_t bits;

	memcpy(&bits, &single, 4);
	if (dtype == NVS_F32)
		((float *)array)[index] = single;
	else if (dtype == NVS_BF16)
		((uint16_t *)array)[index] = (uint16_t)(bits >> 16);
	else
		((uint16_t *)array)[index] = f16_bits(value);
}

double element_get(enum nvs_dtype dtype, const void *array, uint64_t index)
{
	uint32_t bits;
	float single;

	if (dtype == NVS_F32)
		return (double)((const float *)array)[index];
	if (dtype == NVS_F16)
		return f16_value(((const uint16_t *)array)[index]);
	bits = (uint32_t)((const uint16_t *)array)[index] << 16;
	memcpy(&single, &bits, 4);
	return (double)single;
}

double element_value(uint64_t series, uint64_t i)
{
	uint64_t state = series * UINT64_C(0xd1342543de82ef95) + i;
	uint64_t random = next_random(&state);

	return ldexp((double)(int32_t)(uint32_t)random, -31 - (int)(random >> 61));
}

void element_near(double is, double due, double tolerance, const char *what, uint64_t i)
{
	if (!(fabs(is - due) <= tolerance))
		fail_msg("%s %" PRIu64 ": %.17g instead of %.17g", what, i, is, due);
}

/* ---- Optimizers ---- */

static void configure(struct optim *optim, uint64_t longest)
{
	struct nvs_config *config = &optim->config;

	config_init(config);
	config->aio.block_size = 32 * 1024;
	config->sub_group_size = longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_count = 1;
	config->offload[NVS_OFFLOAD_OPTIMIZER].buffer_size = longest;
	config->offload[NVS_OFFLOAD_OPTIMIZER].fast_init = true;
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_read = true;
	config->offload[NVS_OFFLOAD_OPTIMIZER].pipeline_write = true;
	config->optimizer_threads = 2;
	config->grad_accum_dtype = NVS_F32;
	snprintf(config->adam.type, sizeof(config->adam.type), "AdamW");
	config->adam.weight_decay = 0.01;
	DONE(optim,
	     nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER,
				  (const char *const *)(uintptr_t)&optim->path, 1, &optim->error));
}

void optim_first_weights(struct optim *optim)
{
	for (size_t i = 0; i < optim->n; i++) {
		const struct nvs_group_spec *spec = &optim->specs[i];

		for (uint64_t j = 0; spec->weights && j < spec->numel; j++)
			element_put(spec->dtype, spec->weights, j,
				    element_rounded(spec->dtype, element_value(1000 + i, j)));
	}
}

void optim_spoil_weights(struct optim *optim)
{
	for (size_t i = 0; i < optim->n; i++)
		memset(optim->specs[i].weights, 0x33,
		       optim->specs[i].numel * nvs_dtype_size(optim->specs[i].dtype));
}

void optim_init(struct optim *optim, const struct group *groups, size_t n)
{
	uint64_t longest = 8192; /* a pool of 32 KiB, the minimum for two tiles */

	assert_true(n <= OPTIM_GROUPS_MAX);
	memset(optim, 0, sizeof(*optim));
	optim->error.size = sizeof(optim->error);
	optim->options.size = sizeof(optim->options);
	optim->result.size = sizeof(optim->result);
	optim->path = place_make(PLACE_TMPFS);
	if (!optim->path)
		optim->path = place_make(PLACE_DISK);
	assert_non_null(optim->path);
	optim->n = n;
	optim->gradients_dtype = NVS_F32;
	for (size_t i = 0; i < n; i++) {
		uint64_t numel = groups[i].numel;

		if (numel > longest)
			longest = numel;
		optim->specs[i] = (struct nvs_group_spec){sizeof(struct nvs_group_spec),
							  groups[i].name, numel, groups[i].dtype,
							  malloc(numel * 4)};
		optim->gradients[i] = malloc(numel * 4);
		assert_true(optim->specs[i].weights && optim->gradients[i]);
	}
	optim->offload = &optim->config.offload[NVS_OFFLOAD_OPTIMIZER];
	configure(optim, longest);
	optim_first_weights(optim);
	optim->made = true;
}

void optim_renew(struct optim *optim, const struct group *groups, size_t n)
{
	if (optim->made)
		optim_close(optim);
	optim_init(optim, groups, n);
}

void optim_simulate(struct optim *optim)
{
	optim->sim = sim_open(&(const struct sim_drive){0});
}

int optim_open(struct optim *optim)
{
	optim->offload->buffer_size = optim->config.sub_group_size;
	optim->error = (struct nvs_error){.size = sizeof(optim->error)};
	if (optim->sim)
		return optimizer_open_with(&optim->optimizer, &optim->config, optim->specs,
					   optim->n, &optim->options, &engine_sim, optim->sim,
					   &optim->error);
	return nvs_optimizer_open(&optim->optimizer, &optim->config, optim->specs, optim->n,
				  &optim->options, &optim->error);
}

void optim_begin(struct optim *optim, const struct group *groups, size_t n)
{
	optim_renew(optim, groups, n);
	DONE(optim, optim_open(optim));
}

void optim_shut(struct optim *optim)
{
	struct nvs_optimizer *optimizer = optim->optimizer;

	optim->optimizer = NULL;
	DONE(optim, nvs_optimizer_close(optimizer, &optim->error));
}

void optim_reopen(struct optim *optim)
{
	optim_shut(optim);
	DONE(optim, optim_open(optim));
}

void optim_close(struct optim *optim)
{
	if (optim->optimizer)
		optim_shut(optim);
	if (optim->sim)
		sim_close(optim->sim);
	config_free(&optim->config);
	for (size_t i = 0; i < optim->n; i++) {
		free(optim->specs[i].weights);
		free(optim->gradients[i]);
	}
	place_leave(optim->path);
	optim->made = false;
}

void optim_done(struct optim *optim, int rc, const char *file, int line)
{
	if (rc)
		print_error("%s:%d: %s: %s\n", file, line, nvs_strerror(rc), optim->error.text);
	_assert_int_equal(rc, 0, file, line);
}

void optim_refused(struct optim *optim, int rc, int code, const char *words, const char *file,
		   int line)
{
	bool said = strstr(optim->error.text, words) != NULL;

	if (rc != code || optim->error.code != code || !said)
		print_error("%s instead of %s with \"%s\": %s\n", nvs_strerror(rc),
			    nvs_strerror(code), words, optim->error.text);
	_assert_int_equal(rc, code, file, line);
	_assert_int_equal(optim->error.code, code, file, line);
	_assert_true(said, "said", file, line);
	optim->error = (struct nvs_error){.size = sizeof(optim->error)};
}

static void make_gradients(struct optim *optim, size_t group, uint64_t step, double scale)
{
	enum nvs_dtype dtype = optim->gradients_dtype;

	for (uint64_t j = 0; j < optim->specs[group].numel; j++)
		element_put(dtype, optim->gradients[group], j,
			    element_rounded(dtype, scale * element_value(16 * step + group, j)));
}

void optim_lend(struct optim *optim, uint64_t step, double scale)
{
	for (size_t i = 0; i < optim->n; i++) {
		make_gradients(optim, i, step, scale);
		DOES(optim, lend_gradients, i, optim->gradients_dtype, optim->gradients[i]);
	}
}

void optim_add(struct optim *optim, uint64_t step, double scale)
{
	for (size_t i = 0; i < optim->n; i++) {
		make_gradients(optim, i, step, scale);
		DOES(optim, add_gradients, i, 0, optim->specs[i].numel, optim->gradients_dtype,
		     optim->gradients[i], NULL);
	}
}

double optim_lr(uint64_t step)
{
	return 1e-3 / (double)step;
}

int optim_step(struct optim *optim, uint64_t step)
{
	const struct nvs_step_options options = {
		.size = sizeof(options), .lr = optim_lr(step), .norm = true};

	return CALL(optim, step, &options, &optim->result);
}

void optim_run(struct optim *optim, uint64_t first, uint64_t last)
{
	for (uint64_t step = first; step <= last; step++) {
		optim_lend(optim, step, 1);
		DONE(optim, optim_step(optim, step));
		assert_int_equal(optim->result.step, step);
	}
}

void optim_open_run(struct optim *optim, uint64_t steps)
{
	DONE(optim, optim_open(optim));
	optim_run(optim, 1, steps);
}

void optim_fail(struct optim *optim, uint64_t step, enum nvs_direction direction, unsigned after)
{
	optim_lend(optim, step, 1);
	sim_fail(optim->sim, direction, after, EIO, SIM_ALWAYS);
	assert_int_equal(optim_step(optim, step), -EIO);
}

/* ---- Snapshots ---- */

void snapshot_take(struct optim *optim, struct snapshot *snapshot)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	const struct rule *rule;

	DOES(optim, get_info, &info);
	rule = rule_at(info.rule);
	*snapshot = (struct snapshot){.n = optim->n, .norm = optim->result.norm};
	for (size_t i = 0; i < optim->n; i++) {
		const struct nvs_group_spec *spec = &optim->specs[i];

		snapshot->numel[i] = spec->numel;
		snapshot->width[i] = nvs_dtype_size(spec->dtype);
		for (unsigned part = 0; part < rule->nparts; part++) {
			float *data = malloc(spec->numel * 4);

			assert_non_null(data);
			DOES(optim, get, i, rule->parts[part], 0, spec->numel, data);
			snapshot->parts[i][part] = data;
		}
		if (!spec->weights)
			continue;
		snapshot->weights[i] = malloc(spec->numel * 4);
		assert_non_null(snapshot->weights[i]);
		memcpy(snapshot->weights[i], spec->weights, spec->numel * snapshot->width[i]);
	}
}

void snapshot_free(struct snapshot *snapshot)
{
	for (size_t i = 0; i < snapshot->n; i++) {
		for (int part = 0; part < 3; part++)
			free(snapshot->parts[i][part]);
		free(snapshot->weights[i]);
	}
	*snapshot = (struct snapshot){0};
}

static void same_array(const void *a, const void *b, uint64_t n, size_t width, const char *what,
		       size_t group, const char *file, int line)
{
	const char *x = a, *y = b;

	if (!a || !b || !memcmp(a, b, n * width))
		return;
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(x + i * width, y + i * width, width) != 0) {
			print_error("%s of group %zu: element %" PRIu64 " of %" PRIu64 " differs\n",
				    what, group, i, n);
			break;
		}
	_fail(file, line);
}

static uint64_t bits_of(double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

void snapshot_same(const struct snapshot *a, const struct snapshot *b, const char *file, int line)
{
	static const char *const parts[] = {"master", "first state", "second state"};

	_assert_int_equal(a->n, b->n, file, line);
	for (size_t i = 0; i < a->n; i++) {
		_assert_int_equal(a->numel[i], b->numel[i], file, line);
		for (int part = 0; part < 3; part++)
			same_array(a->parts[i][part], b->parts[i][part], a->numel[i], 4,
				   parts[part], i, file, line);
		same_array(a->weights[i], b->weights[i], a->numel[i], a->width[i], "weights", i,
			   file, line);
	}
	if (bits_of(a->norm) != bits_of(b->norm))
		print_error("norms %.17g and %.17g\n", a->norm, b->norm);
	_assert_int_equal(bits_of(a->norm), bits_of(b->norm), file, line);
}

void optim_is_as(struct optim *optim, const struct snapshot *snapshot, const char *file, int line)
{
	struct snapshot now;

	snapshot_take(optim, &now);
	snapshot_same(&now, snapshot, file, line);
	snapshot_free(&now);
}

void optim_is_like(struct optim *optim, struct optim *other, const char *file, int line)
{
	struct snapshot due;

	snapshot_take(other, &due);
	optim_is_as(optim, &due, file, line);
	snapshot_free(&due);
}

struct snapshot optim_saved;

void optim_save(struct optim *optim)
{
	snapshot_free(&optim_saved);
	snapshot_take(optim, &optim_saved);
}

const struct snapshot *optim_straight(const struct group *groups, size_t n, uint64_t steps)
{
	static struct snapshot straight;
	static const struct group *of;
	struct optim own;

	if (of == groups)
		return &straight;
	snapshot_free(&straight);
	optim_init(&own, groups, n);
	own.offload->device = NVS_DEVICE_CPU;
	own.config.optimizer_threads = 1;
	DONE(&own, optim_open(&own));
	optim_run(&own, 1, steps);
	snapshot_take(&own, &straight);
	optim_close(&own);
	of = groups;
	return &straight;
}
