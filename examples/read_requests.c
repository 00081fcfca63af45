/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a file in this program's own event loop: requests are submitted, poll(2) says when some
 * have completed, and each completed one is followed by the next. Standard input stands for the
 * other descriptors of such a loop. Prints what was read.
 *
 * read_requests DIRECTORY      makes a file there, and removes it
 */
#include <nvswap.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 256 * 1024, BLOCKS = 64, IN_FLIGHT = 8 };

struct reader {
	struct nvs_aio *aio;
	struct nvs_file *file;
	char *memory; /* IN_FLIGHT blocks */
	unsigned submitted, completed;
	struct nvs_error error;
};

/* Each function below returns 0, or a negative errno with the reason in reader->error. */

static int make_file(struct reader *reader)
{
	int status = 0;

	for (unsigned i = 0; i < BLOCKS && !status; i++) {
		memset(reader->memory, (int)i, BLOCK);
		status = nvs_aio_pwrite(reader->aio, reader->file, reader->memory, BLOCK,
					(uint64_t)i * BLOCK, NULL, &reader->error);
		/* The memory of a write belongs to the drive until the write completes. */
		if (!status)
			status = nvs_aio_wait_all(reader->aio, -1, NULL, &reader->error);
	}
	return status ? status : nvs_file_sync(reader->file, &reader->error);
}

static int submit(struct reader *reader, char *block)
{
	struct nvs_transfer transfer = {.size = sizeof(transfer),
					.file = reader->file,
					.direction = NVS_READ,
					.data = block,
					.nbytes = BLOCK,
					.offset = (uint64_t)reader->submitted * BLOCK,
					.user = block};

	reader->submitted++;
	return nvs_aio_submit(reader->aio, &transfer, 1, NULL, &reader->error);
}

/* Takes what has completed, and reads the next blocks into the memory. */
static int take(struct reader *reader)
{
	struct nvs_request *requests[IN_FLIGHT];
	size_t n = nvs_aio_take(reader->aio, requests, IN_FLIGHT);
	int status = 0;

	for (size_t i = 0; i < n; i++) {
		char *block = nvs_request_user(requests[i]);

		if (!status)
			status = nvs_request_status(requests[i], &reader->error);
		nvs_request_close(requests[i]);
		reader->completed++;
		if (!status && reader->submitted < BLOCKS)
			status = submit(reader, block);
	}
	return status;
}

static int read_file(struct reader *reader)
{
	struct pollfd watched[] = {{.fd = nvs_aio_eventfd(reader->aio), .events = POLLIN},
				   {.fd = STDIN_FILENO, .events = POLLIN}};
	int status = watched[0].fd < 0 ? watched[0].fd : 0;

	for (unsigned i = 0; i < IN_FLIGHT && !status; i++)
		status = submit(reader, reader->memory + (size_t)i * BLOCK);
	while (!status && reader->completed < BLOCKS) {
		if (poll(watched, 2, -1) < 0)
			continue;
		if (watched[1].revents)
			watched[1].fd = -1; /* a real loop would serve it */
		if (watched[0].revents)
			status = take(reader);
	}
	return status;
}

static int open_all(struct reader *reader, const char *path)
{
	struct nvs_config *config;
	int status = nvs_config_open(&config, &reader->error);

	if (status)
		return status;
	status = nvs_config_set(config, "aio.queue_depth", "8", &reader->error);
	if (!status)
		status = nvs_aio_open(&reader->aio, config, &reader->error);
	nvs_config_close(config);
	if (status)
		return status;
	return nvs_file_open(reader->aio, path, NVS_FILE_WRITE | NVS_FILE_CREATE, &reader->file,
			     &reader->error);
}

int main(int argc, char **argv)
{
	struct reader reader = {.error = {.size = sizeof(reader.error)}};
	char path[4096];
	int status;

	if (argc != 2) {
		fprintf(stderr, "usage: read_requests DIRECTORY\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/read_requests.data", argv[1]);
	reader.memory = aligned_alloc(4096, (size_t)IN_FLIGHT * BLOCK);
	if (!reader.memory)
		return 1;
	status = open_all(&reader, path);
	if (!status)
		status = make_file(&reader);
	if (!status)
		status = read_file(&reader);
	if (status)
		fprintf(stderr, "%s\n",
			*reader.error.text ? reader.error.text : nvs_strerror(status));
	else
		printf("%u blocks of %d KiB were read\n", reader.completed, BLOCK / 1024);
	/* Waits for what is in flight, so the memory may be freed afterwards. */
	nvs_file_close(reader.file);
	nvs_aio_close(reader.aio);
	unlink(path);
	free(reader.memory);
	return status != 0;
}
