/* SPDX-License-Identifier: Apache-2.0 */
/* Records and places beyond 4 GiB in a file of torch.save, which the fields of ZIP64 have. */
#include "checkpoint/torch/torch.h"
#include "checkpoint/torch/zip.h"
#include "support/support.h"

#define N 3u

static const char reader[] =
	"python3 -c 'import sys, zipfile\n"
	"z = zipfile.ZipFile(sys.argv[1])\n"
	"assert [i.file_size for i in z.infolist()[3:]] == [5 << 30, 1, 4], z.infolist()\n"
	"assert z.read(\"archive/data/2\") == bytes(4)\n"
	"z.open(\"archive/data/0\").close()' ";

/* The data are holes of a sparse file. */
TEST(records_and_places_beyond_4_gib_are_read_back)
{
	const char *path = path_in(temp_directory(), "model.pt");
	const uint64_t sizes[N] = {5ull << 30, 1, 4};
	struct nvs_error error = {.size = sizeof(error)};
	char names[N][2] = {"a", "b", "c"}, command[1024];
	struct entry entries[N] = {0};
	struct nvs_checkpoint plan = {.entries = entries, .n = N};
	struct nvs_config *config;
	struct nvs_aio *aio;
	struct torch torch;
	struct sink sink;
	struct zip zip;
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(nvs_config_open(&config, &error), 0);
	assert_int_equal(nvs_aio_open(&aio, config, &error), 0);
	for (unsigned i = 0; i < N; i++)
		entries[i] = (struct entry){
			.name = names[i], .dtype = NVS_U8, .numel = sizes[i], .nbytes = sizes[i]};
	assert_int_equal(torch_place(&torch, &plan, NULL, path, &error), 0);
	torch.crcs[1] = zip_crc32("", 1);
	torch.crcs[2] = zip_crc32("\0\0\0", 4);
	assert_int_equal(ftruncate(fd, (off_t)torch.file_bytes), 0);
	assert_int_equal(pwrite(fd, torch.lead, torch.lead_bytes, 0), torch.lead_bytes);
	assert_int_equal(sink_open(&sink, aio, fd, &error), 0);
	assert_int_equal(torch_finish(&torch, &plan, &sink, path, aio, &error), 0);
	sink_close(&sink);
	nvs_aio_close(aio);
	nvs_config_close(config);

	assert_int_equal(zip_read(&zip, fd, torch.file_bytes, path, &error), 0);
	for (size_t i = 0; i < N; i++) {
		const struct zip_record *record;
		char name[32];

		snprintf(name, sizeof(name), "archive/data/%zu", i);
		record = zip_find(&zip, name);
		assert_non_null(record);
		assert_int_equal(record->nbytes, sizes[i]);
		assert_int_equal(record->data_at, entries[i].offset);
	}
	zip_free(&zip);
	torch_free(&torch);
	close(fd);
	snprintf(command, sizeof(command), "%s%s", reader, path);
	assert_int_equal(system(command), 0);
}

EACH_TEST(NULL, cleanup)
