/* SPDX-License-Identifier: Apache-2.0 */
#include "support/fake/fake_aio.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/support.h"

struct nvs_aio *fake_aio_open(struct fake *fake, const struct aio_config *config,
			      const struct nvs_log *log)
{
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_aio *aio;

	SUCCEEDS(aio_open_with(&aio, config, &engine_fake, fake, log, &error), &error);
	return aio;
}

struct nvs_file *fake_file_open(struct nvs_aio *aio, unsigned flags)
{
	char path[] = "build/tmp/nvswap-test-XXXXXX";
	struct nvs_error error = {.size = sizeof(error)};
	struct nvs_file *file;
	int fd;

	(void)mkdir("build", 0755);
	(void)mkdir("build/tmp", 0755);
	fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	SUCCEEDS(nvs_file_open(aio, path, flags, &file, &error), &error);
	unlink(path);
	return file;
}
