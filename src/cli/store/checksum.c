/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap store checksum`, by an engine that verifies. Writing, the engine computes the checksums,
 * since it is told of none. Checking, it compares them, and damage is reported and passed. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/store/store.h"

/* What is read while its predecessors are waited for: so much of the pool, of so many tensors. */
#define GROUP_SHARE 4
#define GROUP_MAX   4096u

struct sums {
	struct store_job *job;
	struct nvs_engine *engine;
	struct nvs_tensor **tensors;
	uint64_t *lengths; /* bytes of each */
	size_t n;
	uint64_t nbytes, largest, pool, damaged, checked, unchecked;
	struct nvs_error error;
};

/* Opens the files with a pool of so many bytes, whose list gives `n`, `nbytes` and `largest`. */
static int open_files(struct sums *sums, uint64_t pool)
{
	const struct {
		const char *key;
		uint64_t number;
	} settings[] = {{"offload_param.buffer_count", 1},
			{"offload_param.buffer_size", pool / 4}, /* elements of float32 */
			{"aio.block_size", MIB},
			{"aio.queue_depth", 32},
			{"nvswap.verify", 1}};
	const struct store_job *job = sums->job;
	struct nvs_files_options options = {.size = sizeof(options),
					    .checksums = job->check ? job->to : ""};
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	struct nvs_config *config = NULL;
	int rc = nvs_config_open(&config, &sums->error);

	for (size_t i = 0; i < COUNT_OF(settings) && !rc; i++)
		rc = nvs_config_set_number(config, settings[i].key, settings[i].number,
					   &sums->error);
	if (!rc)
		rc = nvs_engine_open_files(&sums->engine, config, job->paths, job->npaths, &options,
					   &sums->error);
	nvs_config_close(config);
	sums->pool = pool;
	sums->nbytes = sums->largest = sums->checked = sums->unchecked = sums->n = 0;
	for (; !rc && !nvs_engine_get_stored(sums->engine, sums->n, &stored); sums->n++) {
		sums->nbytes += stored.nbytes;
		sums->largest = max_u64(sums->largest, stored.nbytes);
		sums->checked += stored.has_checksum;
		sums->unchecked += stored.nbytes && !stored.has_checksum;
	}
	return rc;
}

/* Opens them with a pool for the largest tensor, and lists the tensors. */
static int open_all(struct sums *sums)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	uint64_t pool;
	int rc = open_files(sums, POOL_MIN);

	pool = max_u64(min_u64(sums->nbytes, POOL_MAX), sums->largest + MIB);
	if (!rc && pool > POOL_MIN) {
		nvs_engine_close(sums->engine, NULL);
		sums->engine = NULL;
		rc = open_files(sums, pool);
	}
	if (rc)
		return rc;
	sums->tensors = calloc(sums->n + 1, sizeof(*sums->tensors));
	sums->lengths = calloc(sums->n + 1, sizeof(*sums->lengths));
	if (!sums->tensors || !sums->lengths)
		return error_set(&sums->error, -ENOMEM, "no memory for %zu tensors", sums->n);
	for (size_t i = 0; i < sums->n; i++) {
		nvs_engine_get_stored(sums->engine, i, &stored);
		sums->lengths[i] = stored.nbytes;
		sums->tensors[i] = nvs_tensor_find(sums->engine, stored.name);
	}
	return 0;
}

static size_t group_length(const struct sums *sums, size_t first)
{
	uint64_t left = sums->pool / GROUP_SHARE;
	size_t n = 0;

	while (first + n < sums->n && n < GROUP_MAX && (!n || sums->lengths[first + n] <= left)) {
		left -= min_u64(left, sums->lengths[first + n]);
		n++;
	}
	return n;
}

/* Reads a group while the next one is read ahead. Tensors that are damaged end no check. */
static int read_group(struct sums *sums, size_t first, size_t n)
{
	struct nvs_tensor **group = sums->tensors + first;
	struct json_writer *json = sums->job->json;
	uint64_t pin;
	int rc = nvs_tensor_swap_in(sums->engine, group, n, -1, &pin, &sums->error);

	if (!rc && first + n < sums->n)
		nvs_tensor_prefetch(sums->engine, group + n, group_length(sums, first + n), NULL);
	for (size_t i = 0; i < n && !rc; i++) {
		rc = nvs_tensor_wait(sums->engine, &group[i], 1, pin, -1, &sums->error);
		if (!rc) {
			rc = nvs_tensor_release(sums->engine, &group[i], 1, pin, NVS_CLEAN,
						&sums->error);
		} else if (sums->job->check && (rc == -EBADMSG || rc == -EIO)) {
			json_open_row(json);
			json_text(json, "tensor", sums->error.subject);
			json_text(json, "problem", sums->error.text);
			json_close_object(json);
			sums->damaged++;
			rc = 0;
		}
	}
	return rc ? rc : nvs_tensor_swap_out(sums->engine, group, n, &sums->error);
}

static int read_all(struct sums *sums)
{
	uint64_t done = 0;
	int rc = 0;

	progress_begin(sums->job->check ? "checking" : "reading", sums->nbytes);
	for (size_t first = 0, n; first < sums->n && !stop_signal() && !rc; first += n) {
		n = group_length(sums, first);
		rc = read_group(sums, first, n);
		for (size_t i = 0; i < n; i++)
			done += sums->lengths[first + i];
		progress_update(done, done);
	}
	progress_end();
	return rc;
}

static const char *last_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* The path of the file that has tensor i; those of a file follow one another. */
static const char *file_of(const struct sums *sums, size_t i)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};

	nvs_engine_get_stored(sums->engine, i, &stored);
	return stored.path;
}

/* Before the files are read, which may take long. */
static int check_directories(const struct sums *sums)
{
	for (size_t i = 0; i < sums->n; i++) {
		const char *path = file_of(sums, i);
		char directory[4096];
		int length = sums->job->to
				     ? snprintf(directory, sizeof(directory), "%s", sums->job->to)
				     : snprintf(directory, sizeof(directory), "%.*s.",
						(int)(last_name(path) - path), path);

		if (length < (int)sizeof(directory) && access(directory, W_OK)) {
			say("can't write checksums to %s: %s%s", directory, nvs_strerror(-errno),
			    sums->job->to ? "" : ": name another directory by --to");
			return STATUS_FAILED;
		}
	}
	return 0;
}

/* In one directory, the checksums of one file would replace those of another of its name. */
static int check_names(const struct sums *sums)
{
	for (size_t i = 1; i < sums->n && sums->job->to; i++) {
		const char *path = file_of(sums, i);

		if (!strcmp(path, file_of(sums, i - 1)))
			continue;
		for (size_t k = 0; k < i; k++)
			if (!strcmp(last_name(file_of(sums, k)), last_name(path)))
				return REFUSE(
					STATUS_FAILED,
					"%s and %s have one name, so their checksums need two "
					"directories: write each by a command of its own",
					file_of(sums, k), path);
	}
	return 0;
}

static int write_file(const struct sums *sums, size_t first, size_t end)
{
	struct nvs_stored_tensor stored = {.size = sizeof(stored)};
	const struct store_job *job = sums->job;
	const char *file = file_of(sums, first);
	struct output output;
	struct json_writer json;
	struct stat status = {0};
	char path[4096];
	uint64_t nbytes = 0;
	int rc;

	errno = ENAMETOOLONG;
	if ((size_t)snprintf(path, sizeof(path), "%s%s%s.checksums", job->to ? job->to : "",
			     job->to ? "/" : "",
			     job->to ? last_name(file) : file) >= sizeof(path) ||
	    stat(file, &status))
		return REFUSE(STATUS_FAILED, "%s: %s", file, nvs_strerror(-errno));
	if (output_open(&output, path))
		return STATUS_FAILED;
	rc = output_begin(&output);
	json = json_to(output.file, 1);
	json_open_object(&json, NULL);
	json_text(&json, "format", "nvswap checksums 1");
	json_count(&json, "bytes", (uint64_t)status.st_size);
	json_open_object(&json, "xxh3");
	for (size_t i = first; i < end; i++) {
		char digits[17];

		nvs_engine_get_stored(sums->engine, i, &stored);
		nbytes += stored.nbytes;
		snprintf(digits, sizeof(digits), "%016" PRIx64, stored.checksum);
		if (stored.has_checksum)
			json_text(&json, stored.name, digits);
	}
	json_close_object(&json);
	json_close_object(&json);
	if (output_close(&output) || rc)
		return STATUS_FAILED;
	json_open_object(job->json, NULL);
	json_text(job->json, "file", file);
	json_text(job->json, "checksums", path);
	json_count(job->json, "tensors", end - first);
	json_count(job->json, "bytes", nbytes);
	json_close_object(job->json);
	return 0;
}

/* Once all tensors are read, so that a failure leaves the files of before. */
static int write_all(struct sums *sums)
{
	int status = check_names(sums) || check_directories(sums) ? STATUS_FAILED : 0;
	int rc = status ? 0 : read_all(sums);
	size_t first = 0;

	if (rc)
		say("%s", sums->error.text);
	if (status || rc || stop_signal())
		return STATUS_FAILED;
	for (size_t i = 1; i < sums->n && !status; i++) {
		if (!strcmp(file_of(sums, first), file_of(sums, i)))
			continue;
		status = write_file(sums, first, i);
		first = i;
	}
	return status || !sums->n ? status : write_file(sums, first, sums->n);
}

static int check_all(struct sums *sums)
{
	const struct store_job *job = sums->job;
	struct json_writer *json = job->json;
	int rc;

	if (!sums->checked && sums->nbytes)
		return REFUSE(STATUS_FAILED,
			      "%s has no checksums: \"nvswap store checksum %s\" writes them",
			      job->paths[0], job->paths[0]);
	json_open_object(json, NULL);
	json_texts(json, "paths", job->paths, job->npaths);
	json_open_list(json, "damaged");
	rc = read_all(sums);
	json_close_list(json);
	if (rc)
		say("%s", sums->error.text);
	json_count(json, "tensors", sums->n);
	json_count(json, "bytes", sums->nbytes);
	json_count(json, "without_checksum", sums->unchecked);
	json_close_object(json);
	return rc || sums->damaged ? STATUS_FAILED : 0;
}

int store_checksum(struct store_job *job)
{
	struct sums sums = {.job = job, .error.size = sizeof(sums.error)};
	int rc = open_all(&sums), status = STATUS_FAILED;

	stop_catch_signals(NULL);
	if (rc)
		say("%s", sums.error.text);
	else
		status = job->check ? check_all(&sums) : write_all(&sums);
	if (!rc && stop_signal())
		status = 128 + stop_signal();
	nvs_engine_close(sums.engine, NULL);
	free(sums.tensors);
	free(sums.lengths);
	return status;
}
