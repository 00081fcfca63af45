/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Invalid headers with valid checksums: opening such a store is refused or gives an optimizer that
 * works, and never crashes. Also the bytes of the header.
 */
#include "optim/optim_fixture.h"

#include <errno.h>
#include <math.h>

#include "base/little_endian.h"
#include "optim/state/header.h"
#include "support/tests.h"

ONE_OPTIMIZER

static const struct group pair[] = {{"a", 12345, NVS_BF16}, {"b", 7001, NVS_F32}};

/* Offsets in the header, from docs/store-format.md. */
enum {
	AT_VERSION = 8,
	AT_UNFINISHED = 12,
	AT_TILE_NUMEL = 24,
	AT_NTILES = 32,
	AT_NOFFLOADED = 40,
	AT_NGRADIENTS = 48,
	AT_NGROUPS = 56,
	AT_GRADIENT_DTYPE = 64,
	AT_DYNAMIC = 68,
	AT_STEP = 72,
	AT_SCALE = 80,
	AT_ITERATION = 88,
	AT_LAST_OVERFLOW = 96,
	AT_HYSTERESIS = 104,
	AT_LR = 112,
	AT_FACTOR = 120,
	AT_NORM = 128,
	AT_CLIP = 136,
	AT_MARKS = 144,
};

static void begin(void)
{
	optim_renew(o, pair, LENGTH(pair));
	o->config.keep = true;
	o->config.fp16.enabled = true;
	o->config.fp16.initial_scale_power = 0;
	optim_open_run(o, 2);
	optim_shut(o);
}

static struct nvs_tensor *open_header(struct nvs_engine **engine, uint64_t nbytes)
{
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "optimizer", .dtype = NVS_U8, .numel = nbytes};
	struct nvs_tensor *tensor;

	DONE(o, nvs_engine_open(engine, &o->config, NVS_OFFLOAD_OPTIMIZER, &o->error));
	DONE(o, nvs_tensor_register(*engine, &spec, 1, &tensor, &o->error));
	return tensor;
}

#define HEADER_MAX 1024u

static uint64_t nbytes_of(void)
{
	struct nvs_engine *engine;
	uint64_t nbytes = 0;

	DONE(o, nvs_engine_open(&engine, &o->config, NVS_OFFLOAD_OPTIMIZER, &o->error));
	assert_true(engine_has_stored(engine, "optimizer", &nbytes));
	assert_true(nbytes <= HEADER_MAX);
	DONE(o, nvs_engine_close(engine, &o->error));
	return nbytes;
}

static void read_header(uint8_t *bytes, uint64_t nbytes)
{
	struct nvs_engine *engine;
	struct nvs_tensor *tensor = open_header(&engine, nbytes);
	void *data = bytes;

	DONE(o, nvs_tensor_swap_in_to(engine, &tensor, &data, 1, &o->error));
	DONE(o, sole_wait(engine, &tensor, 1, -1, &o->error));
	DONE(o, nvs_engine_close(engine, &o->error));
}

/* Writes through an engine, which computes the checksum. */
static void write_header(const uint8_t *bytes, uint64_t nbytes)
{
	struct nvs_engine *engine;
	struct nvs_tensor *tensor = open_header(&engine, nbytes);
	const void *data = bytes;

	DONE(o, nvs_tensor_swap_out_from(engine, &tensor, &data, 1, &o->error));
	DONE(o, sole_wait(engine, &tensor, 1, -1, &o->error));
	DONE(o, nvs_engine_close(engine, &o->error));
}

/* ---- Refused ---- */

struct change {
	unsigned at, width;
	uint64_t value;
	int code;
	const char *words; /* in the error: the field and its value */
};

static void opens_with(const uint8_t *good, uint64_t nbytes, const struct change *change)
{
	uint8_t bytes[HEADER_MAX];
	int rc;

	memcpy(bytes, good, nbytes);
	if (change->width == 4)
		put_u32(bytes + change->at, (uint32_t)change->value);
	else if (change->width == 8)
		put_u64(bytes + change->at, change->value);
	else
		bytes[change->at] = (uint8_t)change->value;
	write_header(bytes, nbytes);
	rc = optim_open(o);
	if (rc != change->code)
		print_error("%u = %#llx: %d, %s\n", change->at, (unsigned long long)change->value,
			    rc, o->error.text);
	if (change->words && !strstr(o->error.text, change->words))
		fail_msg("\"%s\" is not in \"%s\"", change->words, o->error.text);
	assert_int_equal(rc, change->code);
}

TEST(numbers_out_of_range_are_refused)
{
	const struct change changes[] = {
		{0, 1, 'x', -EUCLEAN, "no header"},
		{AT_VERSION, 4, 7, -EUCLEAN, "version is 7"},
		{AT_VERSION, 4, 6, -EUCLEAN, "the rule is 0"},
		{AT_VERSION, 4, 5, -EUCLEAN, "format of the state is 0"},
		{AT_DYNAMIC, 4, 0x201, -EUCLEAN, "dynamic loss scale is 513"},
		{AT_UNFINISHED, 4, 2, -EUCLEAN, "unfinished step is 2"},
		{AT_DYNAMIC, 4, UINT32_MAX, -EUCLEAN, "dynamic loss scale is 4294967295"},
		{AT_TILE_NUMEL, 8, 0, -EUCLEAN, "length of a tile is 0"},
		{AT_TILE_NUMEL, 8, 1500, -EUCLEAN, "length of a tile is 1500"},
		{AT_TILE_NUMEL, 8, UINT64_C(1) << 62, -EUCLEAN, "tile is 4611686018427387904"},
		{AT_TILE_NUMEL, 8, UINT64_C(1) << 63, -EUCLEAN, "tile is 9223372036854775808"},
		{AT_TILE_NUMEL, 8, UINT64_MAX - 1023, -EUCLEAN, "tile is 18446744073709550592"},
		{AT_TILE_NUMEL, 8, UINT64_C(1) << 56, -ESTALE, "72057594037927936 elements"},
		{AT_TILE_NUMEL, 8, UINT64_C(1) << 40, -ESTALE, "1099511627776 elements"},
		{AT_TILE_NUMEL, 8, 2048, -ESTALE, "tiles"},
		{AT_NTILES, 8, 0, -EUCLEAN, "number of tiles is 0"},
		{AT_NTILES, 8, UINT64_MAX, -EUCLEAN, "number of tiles is 18446744073709551615"},
		{AT_NTILES, 8, UINT64_C(1) << 53, -EUCLEAN, "marks of 9007199254740992 tiles"},
		{AT_NOFFLOADED, 8, UINT64_MAX, -EUCLEAN, "offloaded tiles is 184467440737"},
		{AT_NOFFLOADED, 8, 1000, -EUCLEAN, "offloaded tiles is 1000"},
		{AT_NOFFLOADED, 8, 0, -ESTALE, "another ratio"},
		{AT_NGRADIENTS, 8, UINT64_MAX, -EUCLEAN, "gradient tensors is 184467440737"},
		{AT_NGROUPS, 8, 0, -EUCLEAN, "number of groups is 0"},
		{AT_NGROUPS, 8, UINT64_C(1) << 61, -EUCLEAN, "groups is 2305843009213693952"},
		{AT_NGROUPS, 8, UINT64_C(1) << 63, -EUCLEAN, "groups is 9223372036854775808"},
		{AT_GRADIENT_DTYPE, 4, UINT32_MAX, -EUCLEAN, "type of the gradients is -1"},
		{AT_GRADIENT_DTYPE, 4, NVS_F64, -EUCLEAN, "type of the gradients is"},
		{AT_GRADIENT_DTYPE, 4, NVS_BF16, -ESTALE, "grad_accum_dtype"},
		{AT_STEP, 8, UINT64_MAX, -EUCLEAN, "steps taken is 18446744073709551615"},
		{AT_STEP, 8, UINT64_C(1) << 53, -EUCLEAN, "steps taken is 9007199254740992"},
		{AT_SCALE, 8, UINT64_C(0x7ff0000000000000), -EUCLEAN, "loss scale is inf"},
		{AT_SCALE, 8, UINT64_C(0x7ff8000000000000), -EUCLEAN, "loss scale is nan"},
		{AT_SCALE, 8, UINT64_C(0xbff0000000000000), -EUCLEAN, "loss scale is -1"},
		{AT_SCALE, 8, UINT64_C(0x8000000000000000), -EUCLEAN, "loss scale is -0"},
		{AT_SCALE, 8, 0, -EUCLEAN, "loss scale is 0"},
		{AT_SCALE, 8, 1, -EUCLEAN, "loss scale is 4.94"},
		{AT_SCALE, 8, UINT64_C(0x7fefffffffffffff), -EUCLEAN, "loss scale is 1.79"},
		{AT_ITERATION, 8, INT64_MAX, -EUCLEAN, "updates of the loss scale is 92233"},
		{AT_ITERATION, 8, UINT64_MAX, -EUCLEAN, "updates of the loss scale is 184467"},
		{AT_LAST_OVERFLOW, 8, UINT64_C(1) << 63, -EUCLEAN, "overflow is -9223372"},
		{AT_LAST_OVERFLOW, 8, INT64_MAX, -EUCLEAN, "overflow is 9223372"},
		{AT_HYSTERESIS, 8, 0, -EUCLEAN, "hysteresis is 0"},
		{AT_HYSTERESIS, 8, UINT64_MAX, -EUCLEAN, "hysteresis is 18446744073709551615"},
		{AT_MARKS, 1, 2, -EUCLEAN, "mark of a tile is 2"},
	};
	uint8_t good[HEADER_MAX];
	uint64_t nbytes;

	begin();
	nbytes = nbytes_of();
	read_header(good, nbytes);
	for (size_t i = 0; i < LENGTH(changes); i++)
		opens_with(good, nbytes, &changes[i]);
	opens_with(good, nbytes,
		   &(struct change){(unsigned)nbytes - 1, 1, 3, -EUCLEAN, "added gradients is 2"});
}

/* They have no meaning in the header of a finished step. */
TEST(numbers_of_an_unfinished_step_have_bounds)
{
	static const struct {
		unsigned at;
		uint64_t value;
		const char *words;
	} changes[] = {
		{AT_LR, UINT64_C(0x7ff8000000000000),
		 "learning rate of the unfinished step is nan"},
		{AT_LR, UINT64_C(0x47f0000000000000), "step is 3.40282e+38: allowed"}, /* 2^128 */
		{AT_FACTOR, UINT64_C(0x7ff0000000000000), "factor of the gradients is inf"},
		{AT_FACTOR, UINT64_C(0xbff0000000000000), "factor of the gradients is -1"},
		{AT_CLIP, UINT64_C(0x4000000000000000), "factor of clipping is 2"},
		{AT_CLIP, UINT64_C(0x7ff8000000000000), "factor of clipping is nan"},
		{AT_NORM, UINT64_C(0xc000000000000000), "norm of the gradients is -2"},
		{AT_STEP, (UINT64_C(1) << 53) - 1, "before the unfinished one is 900719925474"},
	};
	uint8_t good[HEADER_MAX], bytes[HEADER_MAX];
	uint64_t nbytes;

	begin();
	nbytes = nbytes_of();
	read_header(good, nbytes);
	for (size_t i = 0; i < LENGTH(changes); i++) {
		memcpy(bytes, good, nbytes);
		put_u64(bytes + changes[i].at, changes[i].value);
		opens_with(bytes, nbytes,
			   &(struct change){AT_UNFINISHED, 4, 1, -EUCLEAN, changes[i].words});
		opens_with(bytes, nbytes, &(struct change){AT_UNFINISHED, 4, 0, 0, NULL});
		optim_shut(o);
	}
}

TEST(a_header_of_another_length_is_refused)
{
	static const uint64_t lengths[] = {0, 1, HEADER_BYTES - 1, HEADER_BYTES};
	static const uint8_t zeros[HEADER_BYTES];

	for (size_t i = 0; i < LENGTH(lengths); i++) {
		optim_renew(o, pair, LENGTH(pair));
		o->config.keep = true;
		write_header(zeros, lengths[i]);
		assert_int_equal(optim_open(o), -EUCLEAN);
	}
}

/* The header may declare added gradients that do not exist. */
static void step_anyhow(void)
{
	int rc;

	for (size_t i = 0; i < o->n; i++)
		nvs_optimizer_lend_gradients(o->optimizer, i, NVS_F32, o->gradients[i], NULL);
	rc = optim_step(o, 1);
	assert_true(rc == 0 || rc == -ENODATA);
	optim_shut(o);
}

TEST(any_byte_of_the_header_can_be_wrong)
{
	uint64_t random = seed_of_run(), nbytes;
	uint8_t good[HEADER_MAX], bytes[HEADER_MAX];

	begin();
	nbytes = nbytes_of();
	read_header(good, nbytes);
	for (unsigned i = 0; i < 150; i++) {
		memcpy(bytes, good, nbytes);
		bytes[below(&random, nbytes)] = (uint8_t)next_random(&random);
		write_header(bytes, nbytes);
		if (!optim_open(o))
			step_anyhow();
	}
}

TEST(a_header_has_the_documented_bytes)
{
	uint8_t bytes[HEADER_MAX];
	struct header header;

	begin();
	read_header(bytes, nbytes_of());
	assert_memory_equal(bytes, "nvsoptim\4\0\0\0\0\0\0\0", 16);
	assert_memory_equal(bytes + AT_STEP, "\2\0\0\0\0\0\0\0", 8);
	/* 1.0 */
	assert_memory_equal(bytes + AT_SCALE, "\0\0\0\0\0\0\xf0\x3f", 8);
	assert_memory_equal(bytes + AT_ITERATION, "\2\0\0\0\0\0\0\0", 8);
	assert_memory_equal(bytes + AT_LAST_OVERFLOW, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
	assert_memory_equal(bytes + AT_NGROUPS, "\2\0\0\0\0\0\0\0", 8);
	DONE(o, header_decode(bytes, nbytes_of(), &header, &o->error));
	assert_true(header.step == 2 && header.dynamic && !header.unfinished);
}

/* The fuzz target's seeds, by fuzz/seeds/make_optimizer_headers.py: otherwise it fuzzes the first
 * check alone. */
TEST(seeds_of_the_fuzz_target_are_accepted)
{
	static const char *const seeds[] = {"finished", "unfinished", "half", "lent", "layout_max"};

	for (size_t i = 0; i < LENGTH(seeds); i++) {
		struct nvs_error error = {.size = sizeof(error)};
		uint8_t bytes[HEADER_MAX];
		struct header header;
		char path[128];
		size_t nbytes;
		FILE *file;

		snprintf(path, sizeof(path), "fuzz/corpus/optimizer_header/%s", seeds[i]);
		file = fopen(path, "rb");
		assert_non_null(file);
		nbytes = fread(bytes, 1, sizeof(bytes), file);
		fclose(file);
		assert_true(nbytes > 1);
		if (header_decode(bytes + 1, nbytes - 1, &header, &error))
			fail_msg("%s: %s", path, error.text);
	}
}
