/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `nvswap store export` and `import` of an optimizer: its state leaves a store for a file and
 * comes back, equal to the bit, and what is refused changes neither.
 */
#include <xxhash.h>

#include "base/little_endian.h"
#include "cli/store/store_command_fixture.h"
#include "optim/internal.h"

#define GROUPS 2u
#define ROOM   300001u

static const struct nvs_group_spec specs[GROUPS] = {
	{.size = sizeof(*specs), .name = "embed", .dtype = NVS_F32, .numel = ROOM},
	{.size = sizeof(*specs), .name = "head", .dtype = NVS_F32, .numel = 7}};

static struct nvs_config *configure(const char *const *paths, unsigned npaths)
{
	struct nvs_config *config;

	DO(nvs_config_open(&config, &error));
	DO(nvs_config_set_paths(config, NVS_OFFLOAD_OPTIMIZER, paths, npaths, &error));
	DO(nvs_config_set(config, "nvswap.keep", "true", &error));
	DO(nvs_config_set(config, "nvswap.stripe_size", "65536", &error));
	DO(nvs_config_set(config, "zero_optimization.sub_group_size", "1000000", &error));
	return config;
}

static struct nvs_optimizer *open_state(const char *const *paths, unsigned npaths)
{
	struct nvs_config *config = configure(paths, npaths);
	struct nvs_optimizer *optimizer;

	DO(nvs_optimizer_open(&optimizer, config, specs, GROUPS, NULL, &error));
	nvs_config_close(config);
	return optimizer;
}

static void step(struct nvs_optimizer *optimizer, unsigned number)
{
	static float gradients[ROOM];

	for (size_t i = 0; i < ROOM; i++)
		gradients[i] = (float)((i * 31 + number * 17) % 101) / 50 - 1;
	for (size_t i = 0; i < GROUPS; i++)
		DO(nvs_optimizer_lend_gradients(optimizer, i, NVS_F32, gradients, &error));
	DO(nvs_optimizer_step(optimizer, NULL, NULL, &error));
}

/* A store of the state after some steps; returns its generation. */
static uint64_t make_state(const char *const *paths, unsigned npaths, unsigned steps)
{
	struct nvs_optimizer *optimizer = open_state(paths, npaths);
	struct nvs_optimizer_info info = {.size = sizeof(info)};

	for (unsigned i = 1; i <= steps; i++)
		step(optimizer, i);
	DO(nvs_optimizer_set_note(optimizer, "note", 4, &error));
	DO(nvs_optimizer_commit(optimizer, &error));
	DO(nvs_optimizer_get_info(optimizer, &info, &error));
	DO(nvs_optimizer_close(optimizer, &error));
	return info.generation;
}

/* Both stores have the same bits and the same number of steps, and those of a further step. */
static void same_state(struct nvs_optimizer *a, struct nvs_optimizer *b)
{
	static float left[ROOM], right[ROOM];
	struct nvs_optimizer_info one = {.size = sizeof(one)}, other = {.size = sizeof(other)};

	DO(nvs_optimizer_get_info(a, &one, &error));
	DO(nvs_optimizer_get_info(b, &other, &error));
	assert_int_equal(one.step, other.step);
	for (size_t i = 0; i < GROUPS; i++)
		for (unsigned part = 0; part < 3; part++) {
			uint64_t numel = specs[i].numel;

			DO(nvs_optimizer_get(a, i, part, 0, numel, left, &error));
			DO(nvs_optimizer_get(b, i, part, 0, numel, right, &error));
			assert_memory_equal(left, right, numel * sizeof(float));
		}
}

static void is_as(const char *const *paths, unsigned npaths, const char *other)
{
	struct nvs_optimizer *a = open_state(paths, npaths), *b = open_state(&other, 1);

	same_state(a, b);
	step(a, 50);
	step(b, 50);
	same_state(a, b);
	DO(nvs_optimizer_abandon(a, &error));
	DO(nvs_optimizer_abandon(b, &error));
}

TEST(state_leaves_a_store_and_comes_back)
{
	static const char *const names[] = {"s.safetensors", "s.pt"};
	const char *from = temp_directory(), *to = temp_directory();

	make_state(&from, 1, 3);
	SAYS(0, "kind                       optimizer", "show %s --kind optimizer", from);
	assert_says(output, "name embed+0 exp_avg 0");
	make_state(&to, 1, 1);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		SAYS(0, "kind                       optimizer", "export --to %s/%s %s", from,
		     names[i], from);
		assert_says(output, "groups                     2\n  step                       "
				    "3\n  bytes                      3.43 MiB\n");
		SAYS(0,
		     "groups                     2\n  step                       3\n  bytes        "
		     "              3.43 MiB\n",
		     "import --kind optimizer --from %s/%s %s", from, names[i], to);
		is_as(&from, 1, to);
		EXITS(0, "remove %s", to);
		make_state(&to, 1, 1);
	}
}

TEST(a_striped_store_is_exported_in_shards_and_filled)
{
	const char *const paths[] = {temp_directory(), temp_directory()};
	const char *from = temp_directory();

	make_state(&from, 1, 3);
	make_state(paths, 2, 1);
	EXITS(0, "export --to %s/s.safetensors --shard-size 1m %s", from, from);
	EXITS(0, "import --kind optimizer --from %s/s.safetensors.index.json %s %s", from, paths[0],
	      paths[1]);
	is_as(paths, 2, from);
	SAYS(0, "\"kind\": \"optimizer\"",
	     "export --to %s/t.safetensors --output-format json %s %s", from, paths[0], paths[1]);
	assert_says(output, "\"groups\": 2");
	assert_says(output, "\"step\": 3");
	assert_says(output, "\"bytes\": 3600096");
}

/* A store with a group "h\xffad", as an earlier version took it: the name is in the table, and in
 * the sum of the layout. */
static void make_state_with_other_name(const char *path)
{
	struct nvs_optimizer *optimizer = open_state(&path, 1);
	XXH3_state_t *sum = XXH3_createState();
	char *name = memmem(optimizer->table, optimizer->table_bytes, "head", 4);

	assert_non_null(name);
	name[1] = '\xff';
	memcpy(optimizer->groups[1].name, name, 4);
	XXH3_64bits_reset(sum);
	for (size_t i = 0; i < GROUPS; i++) {
		const struct group *group = &optimizer->groups[i];
		uint8_t numbers[16];

		put_u64(numbers, group->numel);
		put_u64(numbers + 8, group->at);
		XXH3_64bits_update(sum, group->name, strlen(group->name) + 1);
		XXH3_64bits_update(sum, numbers, sizeof(numbers));
	}
	optimizer->layout_sum = XXH3_64bits_digest(sum);
	XXH3_freeState(sum);
	DO(nvs_optimizer_commit(optimizer, &error));
	DO(nvs_optimizer_close(optimizer, &error));
}

TEST(state_of_a_group_whose_name_is_not_utf8_leaves_the_store_in_a_form_that_is)
{
	static const char *const files[] = {"s.safetensors", "s.pt"};
	const char *from = temp_directory();
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};

	make_state_with_other_name(from);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		struct nvs_checkpoint *checkpoint;
		unsigned found = 0;

		SAYS(0, "groups                     2\n", "export --to %s/%s %s", from, files[i],
		     from);
		DO(nvs_checkpoint_open(&checkpoint, path_in(from, files[i]), &error));
		for (size_t t = 0; !nvs_checkpoint_get(checkpoint, t, &tensor); t++)
			found += strstr(tensor.name, "h\\xffad") != NULL;
		assert_int_equal(found, 3);
		nvs_checkpoint_close(checkpoint);
	}
}

TEST(gradients_and_note_of_the_state_before_are_discarded)
{
	const char *path = temp_directory();
	struct nvs_optimizer *optimizer;
	struct nvs_group_info group = {.size = sizeof(group)};
	float gradients[7] = {1};
	size_t nbytes = 0;

	make_state(&path, 1, 2);
	EXITS(0, "export --to %s/s.pt %s", path, path);
	optimizer = open_state(&path, 1);
	DO(nvs_optimizer_add_gradients(optimizer, 1, 0, 7, NVS_F32, gradients, NULL, &error));
	DO(nvs_optimizer_close(optimizer, &error));
	EXITS(0, "import --kind optimizer --from %s/s.pt %s", path, path);
	optimizer = open_state(&path, 1);
	DO(nvs_optimizer_get_group_info(optimizer, 1, &group, &error));
	assert_int_equal(group.gradients, NVS_GRADIENTS_NONE);
	assert_int_equal(nvs_optimizer_get_note(optimizer, NULL, &nbytes), 0);
	assert_int_equal(nbytes, 0);
	DO(nvs_optimizer_abandon(optimizer, &error));
}

static void damage_store(const char *path)
{
	damage(path_in(path, "nvswap/rank0-optimizer/data"), offset_of(path, true, "exp_avg"));
}

TEST(a_failed_export_of_state_leaves_what_was_there)
{
	static const char *const names[] = {"s.safetensors", "s.pt"};
	const char *path = temp_directory();
	struct stat before[2], after;

	make_state(&path, 1, 2);
	for (size_t i = 0; i < COUNT(names); i++) {
		EXITS(0, "export --to %s/%s %s", path, names[i], path);
		assert_int_equal(stat(path_in(path, names[i]), &before[i]), 0);
	}
	damage_store(path);
	for (size_t i = 0; i < COUNT(names); i++) {
		SAYS(1, "checksum", "export --to %s/%s %s", path, names[i], path);
		assert_int_equal(stat(path_in(path, names[i]), &after), 0);
		assert_true(before[i].st_ino == after.st_ino && before[i].st_size == after.st_size);
	}
	assert_int_equal(stat(path_in(path, "s.pt.partial"), &after), -1);
}

TEST(a_failed_import_of_state_leaves_the_commit_of_before)
{
	const char *path = temp_directory(), *other = temp_directory(), *same = temp_directory();
	struct stat status;

	make_state(&path, 1, 2);
	make_state(&same, 1, 2);
	make_state(&other, 1, 3);
	EXITS(0, "export --to %s/s.pt %s", other, other);
	EXITS(0, "export --to %s/s.safetensors %s", other, other);
	/* The middle of the data, and so found when some tiles are imported. */
	damage(path_in(other, "s.pt"), 2000000);
	SAYS(1, "checksum", "import --kind optimizer --from %s/s.pt %s", other, path);
	assert_int_equal(stat(path_in(other, "s.safetensors"), &status), 0);
	assert_int_equal(truncate(path_in(other, "s.safetensors"), status.st_size - 1), 0);
	EXITS(1, "import --kind optimizer --from %s/s.safetensors %s", other, path);
	EXITS(1, "import --kind optimizer --from %s/none.pt %s", other, path);
	is_as(&path, 1, same);
}

TEST(a_store_of_state_in_use_is_neither_read_nor_filled)
{
	const char *path = temp_directory();
	struct nvs_optimizer *optimizer;

	make_state(&path, 1, 1);
	EXITS(0, "export --to %s/s.pt %s", path, path);
	optimizer = open_state(&path, 1);
	SAYS(1, in_use(), "import --kind optimizer --from %s/s.pt %s", path, path);
	SAYS(1, in_use(), "export --to %s/t.pt %s", path, path);
	DO(nvs_optimizer_close(optimizer, &error));
}

TEST(a_store_is_converted_to_another_format_and_back)
{
	const char *path = temp_directory(), *same = temp_directory();
	struct nvs_config *config = configure(&path, 1);
	struct nvs_optimizer *optimizer;

	make_state(&path, 1, 3);
	make_state(&same, 1, 3);
	SAYS(0, "from                       fp32\n  to                         bf16\n",
	     "convert --optimizer-state bf16 %s", path);
	assert_says(output, "moments                    600016");
	assert_int_equal(nvs_optimizer_open(&optimizer, config, specs, GROUPS, NULL, &error),
			 -ESTALE);
	assert_says(error.text, "nvswap store convert --optimizer-state fp32");
	nvs_config_close(config);
	/* Of the rounded state nothing more is lost. */
	SAYS(0, "rounded                    0\n",
	     "convert --kind optimizer --optimizer-state split %s", path);
	SAYS(0, "from                       fp32\n  to                         fp32\n",
	     "convert --optimizer-state fp32 %s", path);
	EXITS(0, "convert --optimizer-state bf16 %s", same);
	EXITS(0, "convert --optimizer-state fp32 %s", same);
	is_as(&path, 1, same);
	SAYS(0, "\"to\": \"8bit\"", "convert --optimizer-state 8bit --output-format json %s", path);
	assert_says(output, "\"from\": \"fp32\"");
	assert_says(output, "\"moments\": 600016");
	assert_says(output, "\"step\": 3");
}

TEST(what_is_not_converted_is_said)
{
	const char *path = temp_directory(), *none = temp_directory();
	struct nvs_optimizer *optimizer;

	make_state(&path, 1, 1);
	make_store(quoted(path), 0, 1);
	SAYS(2, "needs --optimizer-state FORMAT", "convert %s", path);
	SAYS(2, "fp32", "convert --optimizer-state int8 %s", path);
	SAYS(2, "option of nvswap store convert", "show --optimizer-state bf16 %s", path);
	SAYS(2, "leave out --kind", "convert --kind parameters --optimizer-state bf16 %s", path);
	SAYS(1, "no store of that rank and kind", "convert --optimizer-state bf16 --rank 1 %s",
	     path);
	make_store(quoted(none), 0, 1);
	SAYS(1, "no store", "convert --optimizer-state bf16 %s", none);
	optimizer = open_state(&path, 1);
	SAYS(1, in_use(), "convert --optimizer-state bf16 %s", path);
	DO(nvs_optimizer_close(optimizer, &error));
	damage_store(path);
	SAYS(1, "checksum", "convert --optimizer-state bf16 %s", path);
	optimizer = open_state(&path, 1);
	DO(nvs_optimizer_abandon(optimizer, &error));
}

TEST(wrong_kinds_groups_and_names_are_refused)
{
	const char *path = temp_directory(), *other = temp_directory();
	struct nvs_config *config = configure(&other, 1);
	struct nvs_group_spec smaller = specs[1];
	struct nvs_optimizer *optimizer;

	make_state(&path, 1, 1);
	smaller.name = "a/b";
	DO(nvs_optimizer_open(&optimizer, config, &smaller, 1, NULL, &error));
	DO(nvs_optimizer_close(optimizer, &error));
	nvs_config_close(config);
	make_store(quoted(other), 0, 1);
	EXITS(0, "export --to %s/s.pt %s", path, path);
	SAYS(1, "no tensor a/b.fp32", "import --kind optimizer --from %s/s.pt %s", path, other);
	SAYS(1, "only the program that makes it knows the groups",
	     "import --kind optimizer --from %s/s.pt --rank 3 %s", path, path);
	SAYS(1, "several stores", "export --to %s/all.pt %s", other, other);
	SAYS(2, "must end with .safetensors or .pt", "export --kind parameters --to %s/step1 %s",
	     other, other);
	SAYS(2, "add --kind optimizer to fill it", "import --from %s/s.pt %s", path, path);
	SAYS(1, "no store of that rank and kind", "show --kind parameters %s", path);
}

TEST(directories_are_refused_with_what_moves_their_contents)
{
	static const char *const names[] = {"step1",	      "x.bin",	"x.SAFETENSORS",
					    "x.safetensors/", "x.pt//", "s.safetensors.index.json"};
	const char *path = temp_directory(), *to = temp_directory();

	make_state(&path, 1, 1);
	for (size_t i = 0; i < COUNT(names); i++) {
		SAYS(2, "export_universal", "export --to %s/%s %s", to, names[i], path);
		assert_int_equal(entries_of(to), 0);
	}
	SAYS(2, "import_universal", "import --kind optimizer --from %s %s", to, path);
}

EACH_TEST(NULL, cleanup)
