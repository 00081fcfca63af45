/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The extremes of every field of every structure that a caller fills in, and of every key of the
 * configuration: a call accepts the value or refuses it as documented, and neither crashes nor
 * allocates for a value that is nonsense. A field that the tables here leave out fails
 * test_tables.py.
 */
#include "project/objects_fixture.h"

#include <float.h>
#include <limits.h>
#include <math.h>

#include "config/reader.h"

#define NUMEL	 256
#define POWER(n) (UINT64_C(1) << (n))
#define TOP	 UINT64_MAX

static char checkpoint_path[512];
static struct nvs_engine *weights_engine;
static struct nvs_error error = {.size = sizeof(error)};
static float gradients[NUMEL], state_of[3][NUMEL];
static uint16_t weights[1 << 16];
static _Alignas(4096) char page[1 << 21];

/* ---- Calls: each gets a structure, and undoes what it has done ---- */

#define CALLS(name, call)                                                                          \
	static int name(const void *with)                                                          \
	{                                                                                          \
		return call;                                                                       \
	}

CALLS(update_arrays, nvs_adam_update(with, &error))
CALLS(update_by_rule, nvs_rule_update(with, &error))
CALLS(export_item, nvs_checkpoint_export(engine, with, 1, checkpoint_path, NULL, &error))
CALLS(export_pickled, nvs_checkpoint_export(engine, NULL, 0, checkpoint_path, with, &error))

static int register_tensor(const void *spec)
{
	struct nvs_tensor *registered;
	int rc = nvs_tensor_register(engine, spec, 1, &registered, &error);

	if (!rc)
		SUCCEEDS(nvs_tensor_forget(engine, &registered, 1, &error), &error);
	return rc;
}

static int open_optimizer(const void *group, const void *options)
{
	struct nvs_optimizer *opened;
	int rc = nvs_optimizer_open(&opened, config, group, 1, options, &error);

	return rc ?: nvs_optimizer_close(opened, &error);
}

static const struct nvs_group_spec plain_group = {sizeof(plain_group), "g", NUMEL, NVS_F32, NULL};

CALLS(open_groups, open_optimizer(with, NULL))
CALLS(open_with_options, open_optimizer(&plain_group, with))

static int take_step(const void *options)
{
	int rc;

	SUCCEEDS(nvs_optimizer_lend_gradients(optimizer, 0, NVS_F32, gradients, &error), &error);
	rc = nvs_optimizer_step(optimizer, options, NULL, &error);
	SUCCEEDS(nvs_optimizer_clear_gradients(optimizer, &error), &error);
	return rc;
}

CALLS(take_step_by_sums, take_step(&(const struct nvs_step_options){
				 .size = sizeof(struct nvs_step_options), .sums = with}))

static int transfer(const void *transfer)
{
	struct nvs_request *request = NULL;
	int rc = nvs_aio_submit(aio, transfer, 1, &request, &error);

	if (rc)
		return rc;
	rc = nvs_aio_wait(aio, &request, 1, 60000, &error);
	SUCCEEDS(nvs_request_close(request), &error);
	return rc;
}

static int read_range(const void *range)
{
	int rc = nvs_tensor_read(engine, range, 1, &error);

	return rc ?: nvs_tensor_wait(engine, &tensor, 1, 0, -1, &error);
}

static int register_rows(const void *rows)
{
	struct nvs_tensor *registered;
	int rc = nvs_tensor_register_rows(weights_engine, rows, 1, &registered, &error);

	if (!rc)
		SUCCEEDS(nvs_tensor_forget(weights_engine, &registered, 1, &error), &error);
	return rc;
}

static int advise_machine(const void *machine)
{
	struct nvs_advice advice = {.size = sizeof(advice)};

	return nvs_machine_advise(machine, NULL, &advice);
}

static int advise_path(const void *path)
{
	static struct nvs_machine_info machine = {.size = sizeof(machine)};
	struct nvs_advice advice = {.size = sizeof(advice)};

	return nvs_machine_advise(&machine, path, &advice);
}

static int merge_latency(const void *latency)
{
	static const double percentiles[] = {0,	  -0.0,	   -1,	     50,	100, 5e-324,
					     101, DBL_MAX, INFINITY, -INFINITY, NAN};
	struct nvs_latency into = {.size = sizeof(into)};
	int rc = nvs_latency_merge(&into, latency);

	for (size_t i = 0; !rc && i < COUNT(percentiles); i++)
		(void)nvs_latency_percentile(&into, percentiles[i]);
	(void)nvs_latency_mean(&into);
	(void)nvs_latency_stddev(&into);
	(void)nvs_latency_within(&into, UINT64_MAX);
	return rc;
}

/* The call fails, and writes its error. */
static int fail_with_error(const void *given)
{
	struct nvs_error *why = (struct nvs_error *)(uintptr_t)given;

	assert_int_equal(nvs_config_load(config, "/nonexistent", why), -ENOENT);
	return 0;
}

static int look_for_store(const void *place)
{
	struct nvs_store *store;
	int rc = nvs_store_open(place, 0, &store, &error);

	nvs_store_close(store);
	return rc == -ENODATA ? 0 : rc;
}

static const uint64_t whole_shape[] = {NUMEL};

static const struct nvs_checkpoint_options good_files = {.size = sizeof(good_files)};

static struct nvs_checkpoint_item good_item = {sizeof(good_item), NULL, "t", whole_shape, 1};

CALLS(export_in_files, nvs_checkpoint_export(engine, &good_item, 1, checkpoint_path, with, &error))

static int open_files(const void *options)
{
	const char *path = checkpoint_path;
	struct nvs_engine *opened;
	int rc = export_in_files(&good_files)
			 ?: nvs_engine_open_files(&opened, config, &path, 1, options, &error);

	return rc ?: nvs_engine_close(opened, &error);
}

static int export_storage(const void *storage)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .pickle = page,
						       .pickle_bytes = 1,
						       .storages = storage,
						       .nstorages = 1};

	return export_pickled(&options);
}

/* ---- Structures, with values that are accepted ---- */

/* Directories without a store. */
static const char *const places[NVS_PATHS_MAX] = {"/", "/", "/", "/", "/", "/", "/", "/",
						  "/", "/", "/", "/", "/", "/", "/", "/"};
static const struct nvs_store_place good_place = {sizeof(good_place), places, 1, 0, false};

static struct nvs_gradient_sums sums = {.size = sizeof(sums), .sum_squares = 1};

static const struct nvs_tensor_spec good_tensor = {
	.size = sizeof(good_tensor), .name = "extreme", .dtype = NVS_F32, .numel = 4};
static const struct nvs_tensor_spec good_shaped = {.size = sizeof(good_shaped),
						   .name = "extreme",
						   .dtype = NVS_F32,
						   .numel = NUMEL,
						   .shape = whole_shape,
						   .ndim = 1};
static const struct nvs_group_spec good_group = {sizeof(good_group), "g", NUMEL, NVS_BF16, weights};
static const struct nvs_step_options good_step = {
	.size = sizeof(good_step), .lr = 0, .sums = &sums, .norm = true};
static const struct nvs_adam_update good_update = {
	.size = sizeof(good_update),
	.numel = NUMEL,
	.step = 1,
	.lr = 1e-3,
	.beta1 = 0.9,
	.beta2 = 0.999,
	.eps = 1e-8,
	.gradients = gradients,
	.gradients_dtype = NVS_F32,
	.master = state_of[0],
	.exp_avg = state_of[1],
	.exp_avg_sq = state_of[2],
	.weights_dtype = NVS_BF16,
	.weights = weights,
};
static const struct nvs_rule_update good_rule = {
	.size = sizeof(good_rule),
	.rule = NVS_RULE_LION,
	.numel = NUMEL,
	.step = 1,
	.lr = 1e-3,
	.gradients = gradients,
	.gradients_dtype = NVS_F32,
	.master = state_of[0],
	.exp_avg = state_of[1],
	.exp_avg_sq = state_of[2],
	.momentum_buffer = state_of[1],
	.sum = state_of[1],
	.weights_dtype = NVS_BF16,
	.weights = weights,
};
static struct nvs_transfer good_transfer = {
	sizeof(good_transfer), NULL, NVS_READ, page, 4096, 0, NULL};
static struct nvs_tensor_range good_range = {sizeof(good_range), NULL, 0, 16, page};
static struct nvs_tensor_rows good_rows = {sizeof(good_rows), NULL, 0, 1, NULL};
static const struct nvs_checkpoint_storage good_storage = {sizeof(good_storage), page, 16};
static const struct nvs_checkpoint_options good_pickled = {.size = sizeof(good_pickled),
							   .pickle = page,
							   .pickle_bytes = 1,
							   .storages = &good_storage,
							   .nstorages = 1};

/* ---- Fields ---- */

enum kind {
	POINTER, /* NULL is tried; what else points nowhere is undefined */
	NAME,	 /* a string */
	WHOLE,	 /* unsigned, an enumeration or a flag */
	REAL,
};

struct field {
	const char *name;
	size_t at, nbytes;
	enum kind kind;
	/* Values within are accepted; others are refused with -EINVAL, and up to `maybe` with
	 * any errno of the call. Those up to `untried` would exceed the arrays here. */
	uint64_t least, most, maybe, untried;
	double real_least, real_most;
	bool null_is_refused;
};

#define FIELD_OF(structure, field, ...)                                                            \
	{                                                                                          \
		.name = #field, .at = offsetof(struct structure, field),                           \
		.nbytes = sizeof(((struct structure *)NULL)->field), __VA_ARGS__                   \
	}
#define WHOLE_FIELD(structure, field, least_, most_, maybe_)                                       \
	FIELD_OF(structure, field, .kind = WHOLE, .least = (least_), .most = (most_),              \
		 .maybe = (maybe_))
#define ANY_WHOLE(structure, field) WHOLE_FIELD(structure, field, 0, UINT64_MAX, UINT64_MAX)
#define REAL_FIELD(structure, field, least_, most_)                                                \
	FIELD_OF(structure, field, .kind = REAL, .real_least = (least_), .real_most = (most_))
#define GIVEN(structure, field)	     FIELD_OF(structure, field, .kind = POINTER, .null_is_refused = true)
#define OPTIONAL(structure, field)   FIELD_OF(structure, field, .kind = POINTER)
#define NAME_FIELD(structure, field) FIELD_OF(structure, field, .kind = NAME)

#define BELOW_1	   0x1.fffffffffffffp-1
#define BELOW_FP32 0x1.fffffdffffffp127 /* below FLT_MAX */

static const struct field tensor_fields[] = {
	NAME_FIELD(nvs_tensor_spec, name),
	WHOLE_FIELD(nvs_tensor_spec, dtype, 0, NVS_F8_E5M2FNUZ, 0),
	/* More than fit the machine are refused for want of memory. */
	WHOLE_FIELD(nvs_tensor_spec, numel, 0, 1 << 20, UINT64_MAX),
	OPTIONAL(nvs_tensor_spec, shape),
	/* Without a shape it means nothing. */
	ANY_WHOLE(nvs_tensor_spec, ndim),
};
/* The shape has NUMEL elements, and as many as numel are registered. */
static const struct field shaped_fields[] = {
	NAME_FIELD(nvs_tensor_spec, name),
	WHOLE_FIELD(nvs_tensor_spec, dtype, 0, NVS_F8_E5M2FNUZ, 0),
	WHOLE_FIELD(nvs_tensor_spec, numel, NUMEL, NUMEL, 0),
	OPTIONAL(nvs_tensor_spec, shape),
	FIELD_OF(nvs_tensor_spec, ndim, .kind = WHOLE, .least = 1, .most = 1, .untried = 64),
};
static const struct field group_fields[] = {
	NAME_FIELD(nvs_group_spec, name),
	/* -E2BIG: more than sub_group_size */
	WHOLE_FIELD(nvs_group_spec, numel, 1, 1, UINT64_MAX),
	WHOLE_FIELD(nvs_group_spec, dtype, NVS_F32, NVS_BF16, 0),
	OPTIONAL(nvs_group_spec, weights),
};
static const struct field options_fields[] = {
	OPTIONAL(nvs_optimizer_options, update),
	OPTIONAL(nvs_optimizer_options, update_arg),
	OPTIONAL(nvs_optimizer_options, weights_final),
	OPTIONAL(nvs_optimizer_options, weights_final_arg),
	OPTIONAL(nvs_optimizer_options, aio),
	WHOLE_FIELD(nvs_optimizer_options, rule, NVS_RULE_ADAM, NVS_RULE_LION, 0),
	OPTIONAL(nvs_optimizer_options, state),
	WHOLE_FIELD(nvs_optimizer_options, take_weights, 0, 1, 0),
};
static const struct field sums_fields[] = {
	REAL_FIELD(nvs_gradient_sums, sum_squares, 0, DBL_MAX),
};
static const struct field step_fields[] = {
	REAL_FIELD(nvs_step_options, lr, -DBL_MAX, (double)FLT_MAX),
	OPTIONAL(nvs_step_options, sums),
	WHOLE_FIELD(nvs_step_options, norm, 0, 1, 0),
};
/* Of both updates. */
#define UPDATE_FIELDS(structure)                                                                   \
	FIELD_OF(structure, numel, .kind = WHOLE, .most = NUMEL, .untried = UINT64_C(1) << 56),    \
		WHOLE_FIELD(structure, step, 1, (UINT64_C(1) << 53) - 1, 0),                       \
		REAL_FIELD(structure, lr, 0, BELOW_FP32),                                          \
		REAL_FIELD(structure, beta1, 0, BELOW_1),                                          \
		REAL_FIELD(structure, beta2, 0, BELOW_1),                                          \
		REAL_FIELD(structure, eps, 0, BELOW_FP32),                                         \
		REAL_FIELD(structure, weight_decay, 0, BELOW_FP32),                                \
		WHOLE_FIELD(structure, adam_w_mode, 0, 1, 0),                                      \
		WHOLE_FIELD(structure, bias_correction, 0, 1, 0), GIVEN(structure, gradients),     \
		WHOLE_FIELD(structure, gradients_dtype, NVS_F32, NVS_BF16, 0),                     \
		REAL_FIELD(structure, grad_factor, -BELOW_FP32, BELOW_FP32),                       \
		GIVEN(structure, master), GIVEN(structure, exp_avg),                               \
		WHOLE_FIELD(structure, weights_dtype, NVS_F32, NVS_BF16, 0),                       \
		OPTIONAL(structure, weights)

static const struct field update_fields[] = {
	UPDATE_FIELDS(nvs_adam_update),
	GIVEN(nvs_adam_update, exp_avg_sq),
};
static const struct field rule_fields[] = {
	UPDATE_FIELDS(nvs_rule_update),
	WHOLE_FIELD(nvs_rule_update, rule, NVS_RULE_ADAM, NVS_RULE_LION, 0),
	REAL_FIELD(nvs_rule_update, momentum, 0, BELOW_FP32),
	REAL_FIELD(nvs_rule_update, dampening, 0, BELOW_FP32),
	REAL_FIELD(nvs_rule_update, lr_decay, 0, BELOW_FP32),
	WHOLE_FIELD(nvs_rule_update, nesterov, 0, 1, 0),
	OPTIONAL(nvs_rule_update, exp_avg_sq),
	OPTIONAL(nvs_rule_update, momentum_buffer),
	OPTIONAL(nvs_rule_update, sum),
};
static const struct field transfer_fields[] = {
	GIVEN(nvs_transfer, file),
	WHOLE_FIELD(nvs_transfer, direction, NVS_READ, NVS_WRITE, 0),
	GIVEN(nvs_transfer, data),
	/* A read beyond the end of the file is -ENODATA. */
	WHOLE_FIELD(nvs_transfer, nbytes, 0, 4096, INT64_MAX),
	WHOLE_FIELD(nvs_transfer, offset, 0, 0, INT64_MAX),
	OPTIONAL(nvs_transfer, user),
};
static const struct field rows_fields[] = {
	GIVEN(nvs_tensor_rows, tensor),
	WHOLE_FIELD(nvs_tensor_rows, first, 0, NUMEL - 1, 0),
	WHOLE_FIELD(nvs_tensor_rows, count, 1, NUMEL, 0),
	OPTIONAL(nvs_tensor_rows, name),
};
static const struct field range_fields[] = {
	GIVEN(nvs_tensor_range, tensor),
	WHOLE_FIELD(nvs_tensor_range, offset, 0, NUMEL * 4 - 16, 0),
	WHOLE_FIELD(nvs_tensor_range, nbytes, 0, NUMEL * 4, 0),
	GIVEN(nvs_tensor_range, data),
};
static const struct field item_fields[] = {
	GIVEN(nvs_checkpoint_item, tensor),
	OPTIONAL(nvs_checkpoint_item, name),
	OPTIONAL(nvs_checkpoint_item, shape),
	FIELD_OF(nvs_checkpoint_item, ndim, .kind = WHOLE, .least = 1, .most = 1, .untried = 64),
};
static const struct field aio_fields[] = {
	OPTIONAL(nvs_files_options, aio),
	OPTIONAL(nvs_files_options, checksums),
};
static const struct field files_fields[] = {
	ANY_WHOLE(nvs_checkpoint_options, shard_bytes),
	OPTIONAL(nvs_checkpoint_options, pickle),
	WHOLE_FIELD(nvs_checkpoint_options, pickle_bytes, 0, 0, 0),
	OPTIONAL(nvs_checkpoint_options, storages),
	WHOLE_FIELD(nvs_checkpoint_options, nstorages, 0, 0, 0),
};
static const struct field pickled_fields[] = {
	WHOLE_FIELD(nvs_checkpoint_options, shard_bytes, 0, 0, 0),
	GIVEN(nvs_checkpoint_options, pickle),
	FIELD_OF(nvs_checkpoint_options, pickle_bytes, .kind = WHOLE, .least = 1, .most = 4096,
		 .untried = 100000000),
	GIVEN(nvs_checkpoint_options, storages),
	FIELD_OF(nvs_checkpoint_options, nstorages, .kind = WHOLE, .least = 1, .most = 1,
		 .untried = 1 << 24),
};
static const struct field storage_fields[] = {
	GIVEN(nvs_checkpoint_storage, data),
	FIELD_OF(nvs_checkpoint_storage, nbytes, .kind = WHOLE, .least = 0, .most = 4096,
		 .untried = UINT64_C(1) << 59),
};
static const struct field place_fields[] = {
	GIVEN(nvs_store_place, paths),
	WHOLE_FIELD(nvs_store_place, npaths, 1, NVS_PATHS_MAX, 0),
	ANY_WHOLE(nvs_store_place, rank),
	WHOLE_FIELD(nvs_store_place, optimizer, 0, 1, 0),
};
/* The library fills these in: all but the flags may have any value. */
static const size_t machine_flags[] = {
	offsetof(struct nvs_machine_info, ioengine[NVS_IOENGINE_IO_URING].works),
	offsetof(struct nvs_machine_info, ioengine[NVS_IOENGINE_LIBAIO].works),
	offsetof(struct nvs_machine_info, ioengine[NVS_IOENGINE_POSIX].works)};
static const size_t path_flags[] = {
	offsetof(struct nvs_path_info, block_device), offsetof(struct nvs_path_info, direct),
	offsetof(struct nvs_path_info, dio_from_statx), offsetof(struct nvs_path_info, rotational)};

#define S(structure, call_, good_, fields_)                                                        \
	{                                                                                          \
		.name = #structure, .nbytes = sizeof(struct structure), .call = (call_),           \
		.good = (good_), .fields = (fields_), .nfields = COUNT(fields_)                    \
	}
#define FILLED(structure, call_, flags_, nflags_)                                                  \
	{                                                                                          \
		.name = #structure, .nbytes = sizeof(struct structure), .call = (call_),           \
		.flags = (flags_), .nflags = (nflags_), .filled = true                             \
	}

static const struct structure {
	const char *name;
	size_t nbytes;
	int (*call)(const void *structure);
	const void *good; /* NULL: zeros */
	const struct field *fields;
	size_t nfields;
	const size_t *flags; /* the offsets of those that the library fills in */
	size_t nflags;
	bool filled;
} structures[] = {
	S(nvs_tensor_spec, register_tensor, &good_tensor, tensor_fields),
	S(nvs_group_spec, open_groups, &good_group, group_fields),
	S(nvs_optimizer_options, open_with_options, NULL, options_fields),
	S(nvs_gradient_sums, take_step_by_sums, &sums, sums_fields),
	S(nvs_step_options, take_step, &good_step, step_fields),
	S(nvs_adam_update, update_arrays, &good_update, update_fields),
	S(nvs_rule_update, update_by_rule, &good_rule, rule_fields),
	S(nvs_transfer, transfer, &good_transfer, transfer_fields),
	S(nvs_tensor_range, read_range, &good_range, range_fields),
	S(nvs_tensor_rows, register_rows, &good_rows, rows_fields),
	S(nvs_checkpoint_item, export_item, &good_item, item_fields),
	S(nvs_checkpoint_options, export_in_files, &good_files, files_fields),
	S(nvs_checkpoint_options, export_pickled, &good_pickled, pickled_fields),
	S(nvs_files_options, open_files, NULL, aio_fields),
	S(nvs_checkpoint_storage, export_storage, &good_storage, storage_fields),
	S(nvs_store_place, look_for_store, &good_place, place_fields),
	FILLED(nvs_machine_info, advise_machine, machine_flags, COUNT(machine_flags)),
	FILLED(nvs_path_info, advise_path, path_flags, COUNT(path_flags)),
	FILLED(nvs_latency, merge_latency, NULL, 0),
	FILLED(nvs_error, fail_with_error, NULL, 0),
};

/* With a shape, whose elements bound what a field can be. */
static const struct structure shaped = S(nvs_tensor_spec, register_tensor, &good_shaped,
					 shaped_fields);

/* ---- Values ---- */

/* The structure under test, with zeros behind it that a larger size may count in. */
static _Alignas(64) unsigned char given[1 << 17];

static void expect(const struct structure *structure, const struct field *field, const char *value,
		   bool accepted, bool maybe)
{
	int rc = structure->call(given);

	if (accepted ? !rc : (maybe ? rc <= 0 : rc == -EINVAL))
		return;
	fail_msg("struct %s with %s = %s: %d, %s", structure->name, field->name, value, rc,
		 error.text);
}

static void reset(const struct structure *structure)
{
	memset(given, 0, sizeof(given));
	memcpy(given, &structure->nbytes, sizeof(structure->nbytes));
	if (structure->good)
		memcpy(given, structure->good, structure->nbytes);
}

static void try_size(const struct structure *structure)
{
	static const uint64_t values[] = {0,	     1,		8,	   sizeof(given),
					  POWER(20), POWER(32), POWER(62), POWER(63),
					  TOP - 7,   TOP - 1,	TOP};
	char text[32];

	for (size_t i = 0; i < COUNT(values); i++) {
		bool writes = structure->call == fail_with_error;
		int rc;

		reset(structure);
		memcpy(given, &values[i], sizeof(values[i]));
		snprintf(text, sizeof(text), "%" PRIu64, values[i]);
		rc = structure->call(given);
		if (writes	     ? rc
		    : values[i] <= 8 ? rc != -EINVAL
				     : rc && rc != -E2BIG && rc != -EINVAL)
			fail_msg("struct %s of size %s: %d, %s", structure->name, text, rc,
				 error.text);
		/* The bytes that it claims are not read. */
		if (!rc && values[i] >= sizeof(given) && !writes &&
		    structure->call != merge_latency)
			fail_msg("struct %s of size %s is accepted", structure->name, text);
	}
}

static void try_names(const struct structure *structure, const struct field *field)
{
	static const size_t lengths[] = {0, 1, NVS_NAME_MAX, NVS_NAME_MAX + 1, 100000};
	const char *name;

	reset(structure);
	memset(given + field->at, 0, field->nbytes);
	expect(structure, field, "NULL", false, false);
	for (size_t i = 0; i < COUNT(lengths); i++) {
		char *text = calloc(1, lengths[i] + 1);

		assert_non_null(text);
		memset(text, 0x7f, lengths[i]);
		name = text;
		memcpy(given + field->at, &name, sizeof(name));
		expect(structure, field, "bytes of 0x7f",
		       lengths[i] >= 1 && lengths[i] <= NVS_NAME_MAX, false);
		/* No UTF-8. */
		memset(text, 0xff, lengths[i]);
		expect(structure, field, "bytes of 0xff", false, false);
		free(text);
	}
}

/* 0 and up, powers of two and their neighbours, and down from the largest number. */
static uint64_t extreme(unsigned i)
{
	uint64_t power = UINT64_C(1) << (i / 3 % 64);

	return i < 192 ? power - 1 + i % 3 : UINT64_MAX - (i - 192);
}

static void try_whole(const struct structure *structure, const struct field *field)
{
	uint64_t top = field->nbytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * field->nbytes) - 1;
	char text[32];

	for (unsigned i = 0; i < 195; i++) {
		uint64_t value = extreme(i);

		/* A flag has no other values than 0 and 1. */
		if (value > top || (field->nbytes == 1 && value > 1) ||
		    (value > field->most && value <= field->untried))
			continue;
		reset(structure);
		memcpy(given + field->at, &value, field->nbytes);
		snprintf(text, sizeof(text), "%" PRIu64, value);
		expect(structure, field, text, value >= field->least && value <= field->most,
		       value <= field->maybe);
	}
}

static const double reals[] = {0,	 -0.0,	    5e-324,  -5e-324, DBL_MIN,	  BELOW_1,
			       1,	 0x1p-24,   0x1p24,  0x1p53,  BELOW_FP32, FLT_MAX,
			       0x1p128,	 0x1p1023,  DBL_MAX, -1,      -FLT_MAX,	  -DBL_MAX,
			       INFINITY, -INFINITY, NAN,     -NAN};

static void try_real(const struct structure *structure, const struct field *field)
{
	char text[32];

	for (size_t i = 0; i < COUNT(reals); i++) {
		bool accepted = reals[i] >= field->real_least && reals[i] <= field->real_most;

		reset(structure);
		memcpy(given + field->at, &reals[i], sizeof(reals[i]));
		snprintf(text, sizeof(text), "%g", reals[i]);
		expect(structure, field, text, accepted, false);
	}
}

static void try_field(const struct structure *structure, const struct field *field)
{
	switch (field->kind) {
	case POINTER:
		reset(structure);
		memset(given + field->at, 0, field->nbytes);
		return expect(structure, field, "NULL", !field->null_is_refused, false);
	case NAME:
		return try_names(structure, field);
	case WHOLE:
		return try_whole(structure, field);
	case REAL:
		return try_real(structure, field);
	}
}

/* Words of any values, among them texts that no NUL ends. */
static void try_words(const struct structure *structure)
{
	uint64_t random = random_seed(structure->name);

	for (unsigned round = 0; round < 1000; round++) {
		uint64_t rarely = 1 + round % 8;

		reset(structure);
		for (size_t at = sizeof(size_t); at + 4 <= structure->nbytes; at += 4) {
			uint64_t value = extreme((unsigned)random_below(&random, 195));
			size_t nbytes = at % 8 || at + 8 > structure->nbytes ? 4 : 8;

			if (!random_below(&random, rarely))
				memcpy(given + at, &value, nbytes);
		}
		for (size_t i = 0; i < structure->nflags; i++)
			given[structure->flags[i]] = random_below(&random, 2);
		if (structure->call(given))
			fail_msg("struct %s, round %u: %s", structure->name, round, error.text);
	}
}

/* The most address space that the process has had, in KiB. */
static uint64_t peak_kib(void)
{
	FILE *status = fopen("/proc/self/status", "r");
	uint64_t kib = 0;
	char line[256];

	assert_non_null(status);
	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, "VmPeak:", 7))
			kib = strtoull(line + 7, NULL, 10);
	fclose(status);
	assert_true(kib);
	return kib;
}

#define GROWTH_KIB (UINT64_C(4) << 20)

static void try_fields(const struct structure *structure)
{
	reset(structure);
	if (structure->call(given))
		fail_msg("struct %s as it should be: %s", structure->name, error.text);
	try_size(structure);
	for (size_t k = 0; k < structure->nfields; k++) {
		uint64_t before = peak_kib();

		try_field(structure, &structure->fields[k]);
		if (peak_kib() > before + GROWTH_KIB)
			fail_msg("%s of struct %s: %" PRIu64 " KiB are mapped",
				 structure->fields[k].name, structure->name, peak_kib() - before);
	}
	if (structure->filled)
		try_words(structure);
}

TEST(every_field_is_accepted_or_refused)
{
	for (size_t i = 0; i < COUNT(structures); i++)
		try_fields(&structures[i]);
	try_fields(&shaped);
}

/*
 * Calls with the structure of an earlier version, which has `junk` where this one has more fields.
 */
static int call_earlier(const struct structure *structure, size_t size, int junk)
{
	reset(structure);
	memcpy(given, &size, sizeof(size));
	memset(given + size, junk, structure->nbytes - size);
	return structure->call(given);
}

TEST(a_structure_of_an_earlier_or_a_later_version_is_read_by_its_size)
{
	for (size_t i = 0; i < COUNT(structures); i++) {
		const struct structure *structure = &structures[i];
		size_t word = sizeof(void *), later = structure->nbytes + word;
		bool written = structure->call == fail_with_error;
		/* What a latency of a later version knows of more is not merged. */
		bool ignored = written || structure->call == merge_latency;

		for (size_t size = 2 * word; size < structure->nbytes; size += word)
			assert_int_equal(call_earlier(structure, size, 0x10),
					 call_earlier(structure, size, 0));
		reset(structure);
		memcpy(given, &later, sizeof(later));
		if (structure->call(given))
			fail_msg("struct %s of a later version: %s", structure->name, error.text);
		given[structure->nbytes] = 1;
		assert_int_equal(structure->call(given), ignored ? 0 : -E2BIG);
		assert_int_equal(call_earlier(structure, structure->nbytes - 1, 0),
				 written ? 0 : -EINVAL);
	}
}

/* ---- Keys of the configuration ---- */

/* A small engine and optimizer with fp16: in two directories for the keys that concern stores,
 * otherwise in host memory. */
static struct nvs_config *small_config(const struct config_key *key)
{
	static const char *const keys[][2] = {
		{"offload_param.buffer_size", "65536"},
		{"offload_param.max_in_cpu", "0"},
		{"zero_optimization.sub_group_size", "65536"},
		{"fp16.enabled", "true"},
		{"nvswap.optimizer_threads", "1"},
	};
	bool drive = key->block == BLOCK_NVSWAP;
	struct nvs_config *small;

	SUCCEEDS(nvs_config_open(&small, &error), &error);
	for (size_t i = 0; i < COUNT(keys); i++)
		SUCCEEDS(nvs_config_set(small, keys[i][0], keys[i][1], &error), &error);
	for (int block = NVS_OFFLOAD_PARAM; block <= NVS_OFFLOAD_OPTIMIZER; block++) {
		const char *name = block ? "offload_optimizer.device" : "offload_param.device";
		const char *paths[] = {drive ? temp_directory() : "",
				       drive ? temp_directory() : ""};

		SUCCEEDS(
			drive ? nvs_config_set_paths(small, (enum nvs_block)block, paths, 2, &error)
			      : nvs_config_set(small, name, "cpu", &error),
			&error);
	}
	return small;
}

/* What an engine and an optimizer may refuse of a value that the configuration accepts. */
static void refused_well(const char *what, int rc)
{
	static const int codes[] = {0,	      -EINVAL, -ENOMEM, -ENOTSUP, -E2BIG,
				    -ENODATA, -EAGAIN, -ENOSPC, -ERANGE,  -ENOENT};

	for (size_t i = 0; i < COUNT(codes); i++)
		if (rc == codes[i])
			return;
	fail_msg("%s: %d, %s", what, rc, error.text);
}

/* Opens both, swaps a tensor and takes a step. */
static void use(const struct nvs_config *with, const char *what)
{
	static const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "t", .dtype = NVS_F32, .numel = NUMEL};
	static const struct nvs_group_spec group = {sizeof(group), "g", NUMEL, NVS_F16, NULL};
	struct nvs_optimizer *stepped = NULL;
	struct nvs_engine *opened = NULL;
	struct nvs_tensor *swapped;
	uint64_t pin;
	int rc = nvs_engine_open(&opened, with, NVS_OFFLOAD_PARAM, &error);

	rc = rc ?: nvs_tensor_register(opened, &spec, 1, &swapped, &error);
	rc = rc ?: nvs_tensor_pin(opened, &swapped, 1, 0, &pin, &error);
	rc = rc ?: nvs_tensor_release(opened, &swapped, 1, pin, NVS_DIRTY, &error);
	refused_well(what, rc);
	SUCCEEDS(nvs_engine_abandon(opened, &error), &error);
	rc = nvs_optimizer_open(&stepped, with, &group, 1, NULL, &error);
	rc = rc ?: nvs_optimizer_lend_gradients(stepped, 0, NVS_F32, gradients, &error);
	rc = rc ?: nvs_optimizer_step(stepped, NULL, NULL, &error);
	refused_well(what, rc);
	SUCCEEDS(nvs_optimizer_close(stepped, &error), &error);
}

/* Sets the value, and uses an engine and an optimizer that have it; or it is refused. */
static void try_key(const struct config_key *key, const char *value, bool accepted)
{
	const char *block = config_blocks[key->block].name;
	struct nvs_config *set = small_config(key);
	char name[96];
	int rc;

	snprintf(name, sizeof(name), "%s%s%s", block, *block ? "." : "", key->name);
	rc = nvs_config_set(set, name, value, &error);
	/* A pool may be too large by two keys together, and fp16 and bf16 exclude each other. */
	if (rc != (accepted ? 0 : -EINVAL) &&
	    !(rc == -EINVAL && (strstr(error.text, "2^63 bytes") || key->block == BLOCK_BF16)))
		fail_msg("%s = %s: %d, %s", name, value, rc, error.text);
	/* A short limit on an I/O depends on the drive. */
	if (!rc && strcmp(key->name, "io_timeout_ms") != 0)
		use(set, name);
	nvs_config_close(set);
	cleanup(NULL);
}

/* Both ends of the range, and numbers of other ranges that are within. */
static void try_whole_key(const struct config_key *key)
{
	const uint64_t step = key->multiple_of ? key->multiple_of : 1;
	const uint64_t values[] = {key->min,  key->max,	 key->max - step,     0,
				   1,	      INT32_MAX, UINT32_MAX,	      POWER(32),
				   POWER(41), POWER(62), 1000000000000000000, POWER(63)};
	char text[32];

	for (size_t i = 0; i < COUNT(values); i++) {
		size_t first = 0;

		while (values[first] != values[i])
			first++;
		snprintf(text, sizeof(text), "%" PRIu64, values[i]);
		if (first == i && values[i] >= key->min && values[i] <= key->max &&
		    values[i] % step == 0)
			try_key(key, text, true);
	}
}

static void try_texts(const struct config_key *key, const char *const *texts)
{
	for (; *texts; texts++)
		try_key(key, *texts, key->type != KEY_REAL || atof(*texts) <= key->real_max);
}

#define TEXTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* test_config tries what is refused. */
TEST(an_engine_and_an_optimizer_take_any_value_that_a_key_accepts)
{
	uint64_t before = peak_kib();

	for (unsigned i = 0; i < config_key_count; i++) {
		const struct config_key *key = &config_keys[i];
		char text[48];

		switch (key->type) {
		case KEY_BOOL:
		case KEY_VERIFY:
			try_texts(key, TEXTS("false", "true"));
			break;
		case KEY_U32:
		case KEY_U64:
			try_whole_key(key);
			break;
		case KEY_REAL:
			try_texts(key, TEXTS("0", "1", "5e-324", "1e-30", "0.9999999999999999",
					     "1.0000000000000002", "1.7e38", "3.4e38",
					     "1.7976931348623157e308"));
			break;
		case KEY_BETAS:
			try_texts(key, TEXTS("[0, 0]", "[0.9999999999999999, 5e-324]"));
			break;
		case KEY_CHOICE:
			for (uint64_t value = 0; value < key->choices->n; value++) {
				if (!config_choice_name(key->choices, value))
					continue;
				snprintf(text, sizeof(text), "\"%s\"",
					 config_choice_name(key->choices, value));
				try_key(key, text, true);
			}
			break;
		case KEY_NAME:
			try_texts(key, TEXTS("\"Adam\"", "\"0123456789012345678901234567890\""));
			break;
		case KEY_PATHS:
			try_texts(key, TEXTS("\"/nonexistent\""));
			break;
		case KEY_BLOCK:
		case KEY_UNUSED:
			break;
		}
	}
	/* Threads and their stacks, and buffers of a block each. */
	assert_true(peak_kib() < before + 16 * GROWTH_KIB);
}

/* Each group is within sub_group_size, their sum is not within 64 bits. */
TEST(elements_that_sum_to_2_to_the_64_are_refused)
{
	static struct nvs_group_spec groups[512];
	static char names[COUNT(groups)][8];
	struct nvs_optimizer *opened;
	struct nvs_config *large;

	SUCCEEDS(nvs_config_copy(config, &large, &error), &error);
	SUCCEEDS(nvs_config_set(large, "offload_optimizer.buffer_count", "1", &error), &error);
	SUCCEEDS(nvs_config_set(large, "zero_optimization.sub_group_size", "72057594037927936",
				&error),
		 &error);
	for (size_t i = 0; i < COUNT(groups); i++) {
		snprintf(names[i], sizeof(names[i]), "g%zu", i);
		groups[i] = (struct nvs_group_spec){sizeof(groups[i]), names[i], UINT64_C(1) << 56,
						    NVS_F32, NULL};
	}
	for (size_t n = 2; n <= COUNT(groups); n *= 2) {
		assert_int_equal(nvs_optimizer_open(&opened, large, groups, n, NULL, &error),
				 -EINVAL);
		assert_says(error.text, "2^56");
	}
	nvs_config_close(large);
}

TEST(tensors_that_sum_to_2_to_the_64_are_refused)
{
	struct nvs_tensor_spec specs[16];
	struct nvs_tensor *registered[COUNT(specs)];
	char names[COUNT(specs)][8];

	for (size_t i = 0; i < COUNT(specs); i++) {
		snprintf(names[i], sizeof(names[i]), "s%zu", i);
		specs[i] = (struct nvs_tensor_spec){sizeof(specs[i]),  names[i], NVS_U8,
						    UINT64_C(1) << 60, NULL,	 0};
	}
	/* From 2^63 bytes on no drive has the room; below it, memory hasn't. */
	for (size_t n = 8; n < COUNT(specs); n++)
		assert_int_equal(nvs_tensor_register(engine, specs, n, registered, &error),
				 -ENOSPC);
	assert_int_equal(nvs_tensor_register(engine, specs, COUNT(specs), registered, &error),
			 -EINVAL);
	assert_says(error.text, "2^64 bytes");
	/* 2^62 bytes each: the bytes count, not the elements. */
	for (size_t i = 0; i < 4; i++)
		specs[i].dtype = NVS_F32;
	assert_int_equal(nvs_tensor_register(engine, specs, 3, registered, &error), -ENOSPC);
	assert_int_equal(nvs_tensor_register(engine, specs, 4, registered, &error), -EINVAL);
	assert_says(error.text, "2^64 bytes");
	assert_null(nvs_tensor_find(engine, "s0"));
}

/* ---- The objects ---- */

static int start(void **state)
{
	const void *data = page;
	struct nvs_checkpoint_item item = {.size = sizeof(item), .name = "t"};
	struct nvs_request *request = NULL;
	const char *path;

	(void)state;
	objects_open(NUMEL);
	SUCCEEDS(nvs_tensor_swap_out_from(engine, &tensor, &data, 1, &error), &error);
	SUCCEEDS(nvs_tensor_wait(engine, &tensor, 1, 0, -1, &error), &error);
	SUCCEEDS(nvs_aio_pwrite(aio, file, page, 4096, 0, &request, &error), &error);
	SUCCEEDS(nvs_aio_wait(aio, &request, 1, -1, &error), &error);
	good_transfer.file = file;
	good_range.tensor = good_item.tensor = tensor;
	snprintf(checkpoint_path, sizeof(checkpoint_path), "%s",
		 path_in(temp_directory(), "extreme.safetensors"));
	path = path_in(temp_directory(), "weights.safetensors");
	item.tensor = tensor;
	SUCCEEDS(nvs_checkpoint_export(engine, &item, 1, path, NULL, &error), &error);
	SUCCEEDS(nvs_engine_open_files(&weights_engine, config, &path, 1, NULL, &error), &error);
	good_rows.tensor = nvs_tensor_find(weights_engine, "t");
	return nvs_request_close(request);
}

static int stop(void **state)
{
	(void)state;
	return nvs_engine_close(weights_engine, NULL) || objects_close();
}

AROUND_TESTS(start, stop)
