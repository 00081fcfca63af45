/* SPDX-License-Identifier: Apache-2.0 */
/* The groups of a kept store: a program that does not know them opens it. */
#include "optim/optim_fixture.h"
#include "optim/state/header.h"

#include <errno.h>

#include "base/little_endian.h"
#include "support/tests.h"

ONE_OPTIMIZER

static const struct group three[] = {
	{"layers.0", 20001, NVS_BF16}, {"norm", 1, NVS_F32}, {"head", 14337, NVS_F16}};

/* Leaves a kept store with the state after two steps, closed. */
static void make_store(double ratio)
{
	optim_renew(o, three, LENGTH(three));
	o->config.keep = true;
	o->offload->ratio = ratio;
	o->config.grad_accum_dtype = NVS_BF16;
	optim_open_run(o, 2);
	optim_save(o);
	optim_shut(o);
}

static int open_unknown(void)
{
	return nvs_optimizer_open(&o->optimizer, &o->config, NULL, 0, NULL, &o->error);
}

/* ---- Opening ---- */

static void has_the_groups(void)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	struct nvs_group_info group = {.size = sizeof(group)};

	DOES(o, get_info, &info);
	assert_true(info.ngroups == LENGTH(three) && info.step == 2);
	for (size_t i = 0; i < LENGTH(three); i++) {
		DOES(o, get_group_info, i, &group);
		assert_string_equal(group.name, three[i].name);
		assert_true(group.numel == three[i].numel && group.dtype == NVS_F32);
	}
}

static void has_the_saved_state(void)
{
	static float got[20001];

	for (size_t i = 0; i < LENGTH(three); i++)
		for (int part = NVS_MASTER; part <= NVS_EXP_AVG_SQ; part++) {
			DOES(o, get, i, part, 0, three[i].numel, got);
			assert_memory_equal(got, optim_saved.parts[i][part],
					    three[i].numel * sizeof(float));
		}
}

/* The configuration has another ratio and accumulation type, and a sub_group_size below a group's
 * elements: the store's count. */
TEST(a_store_is_opened_without_its_groups)
{
	static const double ratios[] = {0, 0.3, 0.999, 1};

	for (size_t i = 0; i < 2 * LENGTH(ratios); i++) {
		bool read_only = i % 2;

		make_store(ratios[i / 2]);
		o->config.keep = !read_only;
		o->config.read_only = read_only;
		o->offload->ratio = 0.5;
		o->config.grad_accum_dtype = NVS_F32;
		o->config.sub_group_size = 10;
		DONE(o, open_unknown());
		has_the_groups();
		has_the_saved_state();
		optim_shut(o);
	}
}

/* Its writer goes on after somebody has opened it without the groups. */
TEST(the_groups_stay_those_of_the_store)
{
	make_store(1);
	DONE(o, open_unknown());
	DOES(o, set_step, 7);
	optim_reopen(o);
	DOES(o, set_step, 2);
	optim_run(o, 3, 3);
	optim_save(o);
	optim_shut(o);
	DONE(o, open_unknown());
	has_the_saved_state();
	optim_shut(o);
}

TEST(without_a_kept_store_groups_are_needed)
{
	optim_renew(o, three, LENGTH(three));
	REFUSED(o, open_unknown(), -EINVAL, "there are no groups");
	o->config.read_only = true;
	REFUSED(o, open_unknown(), -ENODATA, "kept store");
	o->config.read_only = false;
	o->config.keep = true;
	REFUSED(o, open_unknown(), -ENODATA, "kept store");
	assert_null(o->optimizer);
	/* Nothing was made. */
	o->config.keep = false;
	DONE(o, optim_open(o));
}

TEST(a_store_in_use_is_busy)
{
	struct nvs_optimizer *writer;

	make_store(1);
	DONE(o, optim_open(o));
	writer = o->optimizer;
	REFUSED(o, open_unknown(), -EBUSY, "");
	DONE(o, nvs_optimizer_close(writer, &o->error));
	o->optimizer = NULL;
}

static struct nvs_group_spec specs[] = {{.name = "a", .numel = 1},
					{.name = "layers.0", .numel = UINT64_C(1) << 56}};
static const struct group_table two = {
	.ratio = 0.25, .gradient_dtype = NVS_F16, .specs = specs, .n = 2};

enum { TWO_BYTES = 32 + 12 + 1 + 12 + 8 };

TEST(a_table_has_the_documented_bytes)
{
	uint8_t bytes[TWO_BYTES];
	struct group_table table;

	assert_int_equal(groups_nbytes(&two), TWO_BYTES);
	groups_encode(&two, bytes);
	assert_memory_equal(bytes, "nvsgroup", 8);
	assert_int_equal(get_u32(bytes + 8), 1);
	assert_int_equal(get_u32(bytes + 12), NVS_F16);
	assert_true(get_f64(bytes + 16) == 0.25);
	assert_int_equal(get_u64(bytes + 24), 2);
	assert_int_equal(get_u64(bytes + 32), 1);
	assert_int_equal(get_u32(bytes + 40), 1);
	assert_int_equal(bytes[44], 'a');
	assert_true(get_u64(bytes + 45) == UINT64_C(1) << 56);
	assert_memory_equal(bytes + 57, "layers.0", 8);
	assert_int_equal(groups_decode(bytes, TWO_BYTES, &table, NULL), 0);
	assert_int_equal(table.n, 2);
	assert_string_equal(table.specs[1].name, "layers.0");
	assert_true(table.specs[1].numel == UINT64_C(1) << 56 && table.ratio == 0.25);
	groups_free(&table);
}

TEST(a_damaged_table_is_refused)
{
	static const struct {
		unsigned at, nbytes;
		uint64_t value;
		const char *words;
	} cases[] = {
		{0, 4, 0, "no table"},
		{8, 4, 2, "version is 2"},
		{12, 4, 99, "element type"},
		{16, 8, UINT64_C(0x7ff8000000000000), "ratio"},
		{16, 8, UINT64_C(0xbff0000000000000), "ratio"},
		{24, 8, 0, "0 groups"},
		{24, 8, 1, "follow the last group"},
		{24, 8, 3, "3 groups in"},
		{24, 8, UINT64_MAX, "groups in"},
		{32, 8, 0, "0 elements"},
		{32, 8, (UINT64_C(1) << 56) + 1, "elements"},
		{40, 4, 0, "name"},
		{40, 4, 512, "ends within"},
		{40, 4, UINT32_MAX, "ends within"},
		{44, 4, 0, "name"},
	};

	for (size_t i = 0; i < LENGTH(cases); i++) {
		struct nvs_error error = {.size = sizeof(error)};
		uint8_t *bytes = malloc(TWO_BYTES);
		struct group_table table;

		groups_encode(&two, bytes);
		if (cases[i].nbytes == 4)
			put_u32(bytes + cases[i].at, (uint32_t)cases[i].value);
		else
			put_u64(bytes + cases[i].at, cases[i].value);
		assert_int_equal(groups_decode(bytes, TWO_BYTES, &table, &error), -EUCLEAN);
		if (!strstr(error.text, cases[i].words))
			fail_msg("case %zu: %s", i, error.text);
		assert_true(!table.specs && !table.n);
		free(bytes);
	}
}
