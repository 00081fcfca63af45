/* SPDX-License-Identifier: Apache-2.0 */
/* All state of an optimizer to .safetensors and .pt files and back. */
#include "checkpoint/weights_fixture.h"
#include "optim/optim_fixture.h"
#include "support/inject.h"
#include "support/support.h"

static const struct group groups[] = {
	{"embed", 100000, NVS_F32}, {"layers", 300001, NVS_BF16}, {"head", 7, NVS_F16}};

#define SAFETENSORS "state.safetensors"

TWO_OPTIMIZERS

/* Of each test, closed at its end. */
static struct nvs_checkpoint *checkpoint;

static void close_checkpoint(void)
{
	nvs_checkpoint_close(checkpoint);
	checkpoint = NULL;
}
AFTER_SUCCESS(close_checkpoint)

/* Opens it, with the errors of that optimizer. */
static void open_for(struct optim *on, const char *path)
{
	close_checkpoint();
	DONE(on, nvs_checkpoint_open(&checkpoint, path, &on->error));
}

static int export(struct optim *from, const char *path)
{
	return nvs_checkpoint_export_optimizer(from->optimizer, path, NULL, &from->error);
}

static int import(struct optim *to)
{
	return nvs_checkpoint_import_optimizer(to->optimizer, checkpoint, NULL, &to->error);
}

static const char *export_after(struct optim *on, uint64_t steps, const char *name,
				uint64_t shard_bytes)
{
	const struct nvs_checkpoint_options options = {.size = sizeof(options),
						       .shard_bytes = shard_bytes};
	const char *path = path_in(temp_directory(), name);

	optim_begin(on, groups, COUNT(groups));
	optim_run(on, 1, steps);
	DONE(on, nvs_checkpoint_export_optimizer(on->optimizer, path, &options, &on->error));
	return path;
}

TEST(steps_after_an_import_have_the_bits_of_one_run)
{
	static const struct {
		const char *name;
		uint64_t shard_bytes;
		size_t ntensors; /* torch.save's file has the number of steps beside them */
	} files[] = {{SAFETENSORS, 0, 10}, {SAFETENSORS, 500000, 10}, {"state.pt", 0, 9}};
	struct snapshot expected;

	for (size_t i = 0; i < COUNT(files); i++) {
		const char *path = export_after(&optim, 4, files[i].name, files[i].shard_bytes);

		optim_run(&optim, 5, 8);
		snapshot_take(&optim, &expected);
		optim_close(&optim);
		optim_begin(&other, groups, COUNT(groups));
		open_for(&other, path);
		assert_int_equal(nvs_checkpoint_count(checkpoint), files[i].ntensors);
		DONE(&other, import(&other));
		optim_run(&other, 5, 8);
		IS_AS(&other, &expected);
		snapshot_free(&expected);
	}
}

TEST(state_of_another_rule_has_its_own_names)
{
	static const char *const types[] = {"SGD", "Adagrad", "Lion"};
	static const char *const names[] = {"embed.momentum_buffer", "embed.sum", "embed.exp_avg"};
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	const char *path = path_in(temp_directory(), SAFETENSORS);

	for (size_t i = 0; i < COUNT(types); i++) {
		optim_renew(&optim, groups, COUNT(groups));
		strcpy(optim.config.adam.type, types[i]);
		optim.config.adam.momentum = 0.9;
		optim_open_run(&optim, 4);
		DONE(&optim, export(&optim, path));
		optim_renew(&other, groups, COUNT(groups));
		other.config.adam.momentum = 0.9;
		DONE(&other, optim_open(&other));
		open_for(&other, path);
		assert_int_equal(nvs_checkpoint_count(checkpoint), 7);
		assert_int_equal(nvs_checkpoint_get(checkpoint, 1, &tensor), 0);
		assert_string_equal(tensor.name, names[i]);
		/* Adam has other states. */
		REFUSED(&other, import(&other), -ENOENT, "exp_avg");
		optim_shut(&other);
		strcpy(other.config.adam.type, types[i]);
		DONE(&other, optim_open(&other));
		DONE(&other, import(&other));
		optim_run(&optim, 5, 8);
		optim_run(&other, 5, 8);
		IS_LIKE(&other, &optim);
	}
}

TEST(a_checkpoint_with_states_that_the_rule_does_not_have_is_refused)
{
	static const char *const names[] = {"embed.fp32",     "embed.exp_avg", "layers.fp32",
					    "layers.exp_avg", "head.fp32",     "head.exp_avg"};
	const char *path = path_in(temp_directory(), SAFETENSORS);

	optim_begin(&optim, groups, COUNT(groups));
	optim_run(&optim, 1, 4);
	DONE(&optim, export(&optim, path));
	optim_renew(&other, groups, COUNT(groups));
	strcpy(other.config.adam.type, "Lion");
	DONE(&other, optim_open(&other));
	open_for(&other, path);
	REFUSED(&other, import(&other), -ESTALE, "embed.exp_avg_sq");
	/* By their names, exp_avg alone can be had. */
	DONE(&other,
	     nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, names, &other.error));
}

/* More groups in a tile than its transfers may have requests. */
TEST(many_small_groups_are_exported_and_imported)
{
	enum { GROUPS = 60, NUMEL = 1001 };
	static float weights[GROUPS][NUMEL], due[NUMEL], got[NUMEL];
	static char names[GROUPS][16];
	struct nvs_group_spec specs[GROUPS];
	const char *path = path_in(temp_directory(), "small.safetensors");

	optim_renew(&optim, groups, COUNT(groups));
	for (size_t i = 0; i < GROUPS; i++) {
		snprintf(names[i], sizeof(names[i]), "group%zu", i);
		for (size_t k = 0; k < NUMEL; k++)
			weights[i][k] = (float)element_value(i, k);
		specs[i] = (struct nvs_group_spec){.size = sizeof(specs[i]),
						   .name = names[i],
						   .numel = NUMEL,
						   .dtype = NVS_F32,
						   .weights = weights[i]};
	}
	DONE(&optim, nvs_optimizer_open(&optim.optimizer, &optim.config, specs, GROUPS, NULL,
					&optim.error));
	DONE(&optim, export(&optim, path));
	memset(weights, 0, sizeof(weights));
	open_for(&optim, path);
	DONE(&optim, import(&optim));
	for (size_t i = 0; i < GROUPS; i++) {
		for (size_t k = 0; k < NUMEL; k++)
			due[k] = (float)element_value(i, k);
		assert_memory_equal(weights[i], due, sizeof(due));
		DONE(&optim, nvs_optimizer_get(optim.optimizer, i, NVS_MASTER, 0, NUMEL, got,
					       &optim.error));
		assert_memory_equal(got, due, sizeof(due));
	}
}

TEST(a_file_that_cannot_be_read_ends_the_import)
{
	struct inject_observer observer = {.before_open = truncate_before_reading};
	const char *path = export_after(&optim, 1, SAFETENSORS, 0);

	open_for(&optim, path);
	optim_begin(&other, groups, COUNT(groups));
	observer.arg = (void *)(uintptr_t)path;
	inject_observe(&observer);
	REFUSED(&other, import(&other), -ENODATA, "state.safetensors");
	inject_observe(NULL);
	optim_run(&other, 1, 1);
}

/* The number of steps of a file of torch.save is read from it anew. */
TEST(state_that_was_replaced_since_it_was_opened_is_not_imported)
{
	static const char *const names[] = {SAFETENSORS, "state.pt"};
	struct snapshot before;

	for (size_t i = 0; i < COUNT(names); i++) {
		const char *path = export_after(&optim, 1, names[i], 0);

		open_for(&optim, path);
		optim_run(&optim, 2, 2);
		DONE(&optim, export(&optim, path));
		optim_run(&optim, 3, 3);
		snapshot_take(&optim, &before);
		REFUSED(&optim, import(&optim), -ESTALE, names[i]);
		IS_AS(&optim, &before);
		snapshot_free(&before);
	}
}

TEST(state_of_other_groups_is_refused)
{
	static const struct group fewer[] = {{"embed", 100000, NVS_F32},
					     {"layers", 300000, NVS_BF16}};
	static const struct group others[] = {{"embed", 100000, NVS_F32}, {"body", 7, NVS_F32}};
	const char *path;

	path = export_after(&optim, 1, SAFETENSORS, 0);
	open_for(&optim, path);
	optim_begin(&other, fewer, COUNT(fewer));
	REFUSED(&other, import(&other), -ESTALE, "layers.fp32");
	optim_begin(&other, others, COUNT(others));
	REFUSED(&other, import(&other), -ENOENT, "body.fp32");
}

/* ---- The form of torch.save ---- */

/* Imports the file into a new optimizer, whose number of steps is then *step. */
static int import_anew(struct optim *to, const char *path, uint64_t *step)
{
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	int rc;

	optim_begin(to, groups, COUNT(groups));
	open_for(to, path);
	rc = import(to);
	DONE(to, nvs_optimizer_get_info(to->optimizer, &info, NULL));
	*step = info.step;
	return rc;
}

static void read_part(struct optim *on, size_t group, enum nvs_optimizer_part part, float *data)
{
	DONE(on, nvs_optimizer_get(on->optimizer, group, part, 0, groups[group].numel, data,
				   &on->error));
}

/* The moments of "head" change places, those of "embed" become 0. */
TEST(parts_are_read_by_the_names_of_the_caller)
{
	static const char *const names[] = {"embed.fp32",
					    NULL,
					    NULL,
					    "layers.fp32",
					    "layers.exp_avg",
					    "layers.exp_avg_sq",
					    "head.fp32",
					    "head.exp_avg_sq",
					    "head.exp_avg"};
	static float before[100000], after[100000];
	struct nvs_optimizer_info info = {.size = sizeof(info)};
	const char *path = export_after(&optim, 4, "state.pt", 0);

	optim_begin(&other, groups, COUNT(groups));
	optim_run(&other, 1, 1);
	open_for(&other, path);
	DONE(&other,
	     nvs_checkpoint_import_optimizer(other.optimizer, checkpoint, names, &other.error));
	DONE(&other, nvs_optimizer_get_info(other.optimizer, &info, NULL));
	assert_int_equal(info.step, 1);
	read_part(&optim, 0, NVS_MASTER, before);
	read_part(&other, 0, NVS_MASTER, after);
	assert_memory_equal(before, after, sizeof(before));
	memset(before, 0, sizeof(before));
	read_part(&other, 0, NVS_EXP_AVG_SQ, after);
	assert_memory_equal(before, after, sizeof(before));
	read_part(&optim, 2, NVS_EXP_AVG, before);
	read_part(&other, 2, NVS_EXP_AVG_SQ, after);
	assert_memory_equal(before, after, 7 * sizeof(float));
	assert_true(before[0] != 0);
}

TEST(damage_in_any_part_of_a_file_for_torch_is_an_error)
{
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	const char *path = export_after(&optim, 1, "state.pt", 0);
	struct nvs_checkpoint *whole;
	uint64_t step;

	DONE(&optim, nvs_checkpoint_open(&whole, path, &optim.error));
	for (size_t i = 0; i < nvs_checkpoint_count(whole); i++) {
		off_t at;

		assert_int_equal(nvs_checkpoint_get(whole, i, &tensor), 0);
		at = (off_t)(tensor.offset + (i % 2 ? 0 : tensor.nbytes - 1));
		flip(path, at, 1);
		REFUSED(&other, import_anew(&other, path, &step), -EBADMSG, tensor.name);
		assert_int_equal(step, 0);
		flip(path, at, 1);
	}
	DONE(&other, import_anew(&other, path, &step));
	assert_int_equal(step, 1);
	nvs_checkpoint_close(whole);
}

/* Copies a file of torch.save with another pickle, which Python makes of the one that is there. */
static const char script[] =
	"import sys, zipfile\n"
	"source, target, pickle, step = sys.argv[1:]\n"
	"old = b'X\\4\\0\\0\\0stepJ\\4\\0\\0\\0'\n"
	"def tensor(storage, numel):\n"
	"    return "
	"(b'X\\4\\0\\0\\0stepctorch._utils\\n_rebuild_tensor_v2\\n((X\\7\\0\\0\\0storage'\n"
	"            b'ctorch\\n' + storage + b'Storage\\nX\\1\\0\\0\\0sX\\3\\0\\0\\0cpuK' + "
	"numel\n"
	"            + b'tQK\\0K' + numel + "
	"b'\\x85K\\1\\x85\\x89ccollections\\nOrderedDict\\n)RtR')\n"
	"new = {'none': b'', 'text': b'X\\4\\0\\0\\0stepX\\1\\0\\0\\0x',\n"
	"       'negative': b'X\\4\\0\\0\\0stepJ\\xff\\xff\\xff\\xff',\n"
	"       'large': b'X\\4\\0\\0\\0step\\x8a\\7\\0\\0\\0\\0\\0\\0\\x20',\n"
	"       'most': b'X\\4\\0\\0\\0step\\x8a\\7\\xff\\xff\\xff\\xff\\xff\\xff\\x1f',\n"
	"       'float': b'X\\4\\0\\0\\0stepG\\x40\\x1c\\0\\0\\0\\0\\0\\0',\n"
	"       'half': b'X\\4\\0\\0\\0stepG\\x3f\\xe0\\0\\0\\0\\0\\0\\0',\n"
	"       'long': tensor(b'Long', b'\\1'), 'float32': tensor(b'Float', b'\\1'),\n"
	"       'two': tensor(b'Long', b'\\2'), 'byte': tensor(b'Byte', b'\\1')}[pickle]\n"
	"with zipfile.ZipFile(source) as z, zipfile.ZipFile(target, 'w') as out:\n"
	"    for name in z.namelist():\n"
	"        data = z.read(name)\n"
	"        assert name != 'archive/data.pkl' or data.count(old) == 1\n"
	"        out.writestr(name, data.replace(old, new) if name.endswith('.pkl') else data)\n"
	"    if step:\n"
	"        out.writestr('archive/data/s', bytes.fromhex(step))\n";

TEST(the_number_of_steps_is_any_whole_number_of_the_dictionary)
{
	static const struct {
		const char *pickle, *step; /* the data of a tensor, in hexadecimal digits */
		int rc;
		const char *words;
		uint64_t count;
	} cases[] = {
		{"none", "", -EINVAL, "step: it is missing", 0},
		{"text", "", -EINVAL, "step: it must be a whole number", 0},
		{"negative", "", -EINVAL, "step: it must be a whole number", 0},
		{"large", "", -ERANGE, "2^53 - 1", 0},
		{"most", "", 0, "", (UINT64_C(1) << 53) - 1},
		{"float", "", 0, "", 7},
		{"half", "", -EINVAL, "step: it must be a whole number", 0},
		{"long", "0300000000000000", 0, "", 3},
		{"long", "ffffffffffffffff", -EINVAL, "step: it must be a whole number", 0},
		{"float32", "0000a040", 0, "", 5},
		{"two", "01000000000000000200000000000000", -EINVAL, "one element of F32, I64", 0},
		{"byte", "01", -EINVAL, "one element of F32, I64", 0},
	};
	const char *path = export_after(&optim, 4, "state.pt", 0);
	const char *directory = temp_directory(), *read = path_in(directory, "step.py");
	const char *copy = path_in(directory, "copy.pt");

	optim_close(&optim);
	write_text(read, script);
	for (size_t i = 0; i < COUNT(cases); i++) {
		char command[1024];
		uint64_t step;
		int rc;

		snprintf(command, sizeof(command), "python3 %s %s %s %s '%s'", read, path, copy,
			 cases[i].pickle, cases[i].step);
		assert_int_equal(system(command), 0);
		rc = import_anew(&other, copy, &step);
		if (cases[i].rc)
			REFUSED(&other, rc, cases[i].rc, cases[i].words);
		else
			DONE(&other, rc);
		assert_true(step == cases[i].count);
	}
}

/* Takes a step when the first file is made. */
static void step_once(void *arg, struct inject_name *name)
{
	struct optim **next = arg;
	struct optim *own = *next;

	if (name->change != INJECT_MAKES || !own)
		return;
	*next = NULL;
	optim_run(own, 2, 2);
}

TEST(state_that_a_step_changes_meanwhile_is_not_exported)
{
	static const char *const names[] = {SAFETENSORS, "state.pt"};

	for (size_t i = 0; i < COUNT(names); i++) {
		struct optim *steps = &optim;
		const struct inject_observer observer = {.arg = &steps, .before_name = step_once};
		const char *directory = temp_directory();

		optim_begin(&optim, groups, COUNT(groups));
		optim_run(&optim, 1, 1);
		inject_observe(&observer);
		REFUSED(&optim, export(&optim, path_in(directory, names[i])), -EBUSY,
			"took a step");
		inject_observe(NULL);
		assert_null(steps);
		assert_int_equal(entries_of(directory), 0);
	}
}

/* Takes a step when the first file is opened. */
static void step_before_open(void *arg, const char *path)
{
	struct optim **next = arg;
	struct optim *own = *next;

	(void)path;
	*next = NULL;
	if (own)
		optim_run(own, 2, 2);
}

TEST(an_import_that_a_step_changes_meanwhile_is_told)
{
	const char *path = path_in(temp_directory(), SAFETENSORS);
	struct optim *steps = &optim;
	const struct inject_observer observer = {.arg = &steps, .before_open = step_before_open};
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	optim_begin(&optim, groups, COUNT(groups));
	DONE(&optim, export(&optim, path));
	optim_run(&optim, 1, 1);
	open_for(&optim, path);
	inject_observe(&observer);
	REFUSED(&optim, import(&optim), -EBUSY, "took a step");
	inject_observe(NULL);
	DONE(&optim, nvs_optimizer_get_info(optim.optimizer, &info, &optim.error));
	assert_int_equal(info.step, 2);
}

EACH_TEST(NULL, cleanup)
