/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files in the form of torch.save. Python's zipfile checks their records and CRCs, and its pickle
 * reads the dictionary with the names that torch.load permits.
 */
#include "checkpoint/torch/zip.h"
#include "swap/swap_fixture.h"

#define N 5u

ONE_ENGINE

/* Prints a name, storage, shape and the sum of the bytes for each tensor. */
static const char reader[] =
	"import pickle, sys, zipfile\n"
	"z = zipfile.ZipFile(sys.argv[1])\n"
	"assert z.testzip() is None\n"
	"assert z.read('archive/byteorder') == b'little' and z.read('archive/version') == b'3\\n'\n"
	"class Names(pickle.Unpickler):\n"
	"    def find_class(self, module, name):\n"
	"        if (module, name) == ('collections', 'OrderedDict'):\n"
	"            return dict\n"
	"        if (module, name) == ('torch._utils', '_rebuild_tensor_v2'):\n"
	"            return lambda storage, offset, shape, stride, grad, hooks: (storage, shape, "
	"stride)\n"
	"        assert module == 'torch' and name.endswith('Storage'), (module, name)\n"
	"        return name\n"
	"    def persistent_load(self, saved):\n"
	"        kind, storage, key, place, numel = saved\n"
	"        assert kind == 'storage' and place == 'cpu'\n"
	"        return storage, numel, z.read('archive/data/' + key)\n"
	"tensors = Names(z.open('archive/data.pkl')).load()\n"
	"assert list(tensors) == ['t0', 't1', 't2', 't3', 't4'], list(tensors)\n"
	"sizes = [4096, 1, 0, 70000, 1 << 20]\n"
	"for i, ((storage, numel, data), shape, stride) in enumerate(tensors.values()):\n"
	"    assert storage == 'ByteStorage' and numel == len(data) == sizes[i]\n"
	"    assert data == bytes((k * 7 + i) % 256 for k in range(numel))\n"
	"    wanted = (64, 64) if i == 0 else (1, numel) if i % 4 == 1 else (numel,)\n"
	"    assert shape == wanted and stride == (wanted[-1], 1)[-len(wanted):]\n"
	"    header = z.getinfo(f'archive/data/{i}').header_offset\n"
	"    raw = open(sys.argv[1], 'rb').read()[header:header + 30]\n"
	"    at = header + 30 + int.from_bytes(raw[26:28], 'little') + int.from_bytes(raw[28:30], "
	"'little')\n"
	"    assert at % 64 == 0, at\n";

static void make(struct nvs_tensor **t)
{
	const uint64_t sizes[N] = {4096, 1, 0, 70000, MIB};
	uint64_t pin;

	OPEN(f, .pool_bytes = 2 * MIB, .max_in_cpu = NONE_STAYS);
	tensors_add(f, "t", sizes, N, t);
	for (unsigned i = 0; i < N; i++) {
		unsigned char *data;

		OK(f, nvs_tensor_pin(f->engine, &t[i], 1, -1, &pin, &f->error));
		data = nvs_tensor_data(t[i]);
		for (uint64_t k = 0; k < sizes[i]; k++)
			data[k] = (unsigned char)(k * 7 + i);
		OK(f, nvs_tensor_release(f->engine, &t[i], 1, pin, NVS_DIRTY, &f->error));
	}
}

/* Exports the tensors as the dictionary that the reader expects, and returns the file. */
static const char *export_all(struct nvs_checkpoint_item *items, struct nvs_tensor *const *t)
{
	static const uint64_t shape[] = {64, 64};
	const char *path = path_in(temp_directory(), "model.pt");

	for (unsigned i = 0; i < N; i++)
		items[i] = (struct nvs_checkpoint_item){.size = sizeof(items[i]), .tensor = t[i]};
	items[0].shape = shape;
	items[0].ndim = 2;
	OK(f, nvs_checkpoint_export(f->engine, items, N, path, NULL, &f->error));
	return path;
}

static void check_with_python(const char *path)
{
	const char *script = path_in(temp_directory(), "read.py");
	char command[1024];

	write_text(script, reader);
	snprintf(command, sizeof(command), "python3 %s %s", script, path);
	assert_int_equal(system(command), 0);
}

TEST(zip_and_pickle_are_those_of_torch_save)
{
	struct nvs_checkpoint_item items[N];
	struct nvs_tensor *t[N];

	make(t);
	check_with_python(export_all(items, t));
}

/* The pickle of a file of torch.save. */
static void *read_pickle(const char *path, size_t *nbytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const struct zip_record *record;
	struct stat status;
	struct zip zip;
	char *data;

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(zip_read(&zip, fd, (uint64_t)status.st_size, path, NULL), 0);
	record = zip_find(&zip, "archive/data.pkl");
	assert_non_null(record);
	*nbytes = record->nbytes;
	data = malloc(*nbytes);
	assert_non_null(data);
	assert_int_equal(pread(fd, data, *nbytes, (off_t)record->data_at), *nbytes);
	zip_free(&zip);
	close(fd);
	return data;
}

/* t3 and t4 come from memory, the others from the engine. */
TEST(a_pickle_of_the_caller_has_the_tensors_and_then_its_storages)
{
	static unsigned char data[2][MIB];
	const struct nvs_checkpoint_storage storages[2] = {{sizeof(storages[0]), data[0], 70000},
							   {sizeof(storages[1]), data[1], MIB}};
	struct nvs_checkpoint_options options = {
		.size = sizeof(options), .storages = storages, .nstorages = 2};
	const char *path = path_in(temp_directory(), "state_of_a_rank");
	struct nvs_checkpoint_item items[N];
	struct nvs_tensor *t[N];
	void *pickle;

	make(t);
	pickle = read_pickle(export_all(items, t), &options.pickle_bytes);
	options.pickle = pickle;
	for (unsigned i = 0; i < 2; i++)
		for (uint64_t k = 0; k < MIB; k++)
			data[i][k] = (unsigned char)(k * 7 + 3 + i);
	OK(f, nvs_checkpoint_export(f->engine, items, 3, path, &options, &f->error));
	check_with_python(path);
	free(pickle);
}

TEST(storages_without_a_pickle_or_data_and_shards_are_refused)
{
	struct nvs_checkpoint_storage storage = {sizeof(storage), NULL, 1};
	struct nvs_checkpoint_options options = {
		.size = sizeof(options), .storages = &storage, .nstorages = 1};
	const char *directory = temp_directory(), *path = path_in(directory, "model.pt");
	struct nvs_checkpoint_item item = {.size = sizeof(item)};
	struct nvs_tensor *t[N];

	make(t);
	item.tensor = t[0];
#define REFUSES(words) FAILS(f, -EINVAL, words, nvs_checkpoint_export, &item, 1, path, &options)
	REFUSES("pickle is NULL");
	options.pickle = "}.";
	options.pickle_bytes = 2;
	REFUSES("storages[0]: data is NULL");
	storage.size = 0;
	REFUSES("storages[0]");
	options.storages = NULL;
	REFUSES("storages is NULL");
	options.nstorages = 0;
	options.shard_bytes = 4096;
	REFUSES("no shards");
#undef REFUSES
	assert_int_equal(entries_of(directory), 0);
}

/* The names in a pickle are those that torch 2.13 writes. */
static void names_torch(const char *path, const char *names)
{
	size_t nbytes;
	char *pickle = read_pickle(path, &nbytes);

	assert_non_null(memmem(pickle, nbytes, names, strlen(names)));
	free(pickle);
}

/* Types behind BOOL have no place in them. */
#define TORCH_DTYPES (NVS_BOOL + 1)

TEST(elements_of_a_type_that_files_of_torch_lack_are_refused)
{
	const char *directory = temp_directory(), *path = path_in(directory, "model.pt");
	const struct nvs_tensor_spec spec = {
		.size = sizeof(spec), .name = "scale", .dtype = NVS_F8_E8M0, .numel = 6};
	struct nvs_checkpoint_item item = {.size = sizeof(item)};

	OPEN(f, .pool_bytes = MIB);
	OK(f, nvs_tensor_register(f->engine, &spec, 1, &item.tensor, &f->error));
	tensor_write(f, item.tensor, 1);
	FAILS(f, -EINVAL, "tensor scale: a file of torch.save has no F8_E8M0",
	      nvs_checkpoint_export, &item, 1, path, NULL);
	assert_int_equal(entries_of(directory), 0);
}

TEST(elements_of_every_type_are_written_and_read_back)
{
	const char *path = path_in(temp_directory(), "model.pt");
	struct nvs_checkpoint_item items[TORCH_DTYPES];
	struct nvs_checkpoint_tensor tensor = {.size = sizeof(tensor)};
	struct nvs_tensor *t[TORCH_DTYPES];
	struct nvs_checkpoint *checkpoint;

	OPEN(f, .pool_bytes = MIB);
	for (unsigned i = 0; i < TORCH_DTYPES; i++) {
		struct nvs_tensor_spec spec = {.size = sizeof(spec),
					       .name = nvs_dtype_name((enum nvs_dtype)i),
					       .dtype = (enum nvs_dtype)i,
					       .numel = 6};

		OK(f, nvs_tensor_register(f->engine, &spec, 1, &t[i], &f->error));
		tensor_write(f, t[i], i);
		items[i] = (struct nvs_checkpoint_item){.size = sizeof(items[i]), .tensor = t[i]};
	}
	OK(f, nvs_checkpoint_export(f->engine, items, TORCH_DTYPES, path, NULL, &f->error));
	names_torch(path, "torch._utils\n_rebuild_tensor_v3\n");
	names_torch(path, "ctorch.storage\nUntypedStorage\n");
	names_torch(path, "ctorch\nfloat8_e5m2\ntR");
	names_torch(path, "ctorch\nBFloat16Storage\n");
	OK(f, nvs_checkpoint_open(&checkpoint, path, &f->error));
	for (unsigned i = 0; i < TORCH_DTYPES; i++) {
		assert_int_equal(nvs_checkpoint_get(checkpoint, i, &tensor), 0);
		assert_int_equal(tensor.dtype, i);
		assert_int_equal(tensor.numel, 6);
		assert_int_equal(tensor.ndim, 1);
		assert_int_equal(tensor.shape[0], 6);
		tensor_write(f, t[i], i + 100);
	}
	OK(f, nvs_checkpoint_import(f->engine, checkpoint, items, TORCH_DTYPES, &f->error));
	for (unsigned i = 0; i < TORCH_DTYPES; i++)
		tensor_compare(f, t[i], i);
	nvs_checkpoint_close(checkpoint);
}

EACH_TEST(NULL, cleanup)
