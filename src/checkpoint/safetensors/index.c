/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several files with an index, as the Hugging Face tools have them: a JSON object whose
 * "weight_map" names the file of each tensor. Files lie in the directory of the index, so an
 * index names no files elsewhere.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json/read.h"
#include "checkpoint/checkpoint.h"

static int no_memory(const char *path, struct nvs_error *error)
{
	return error_set(error, -ENOMEM, "no memory for the index %s", path);
}

static int add_shard(struct nvs_checkpoint *checkpoint, const char *path, const char *name,
		     struct nvs_error *error)
{
	const char *slash = strrchr(path, '/');
	int directory = slash ? (int)(slash - path) + 1 : 0, rc;
	struct nvs_checkpoint shard;
	char *full;

	if (asprintf(&full, "%.*s%s", directory, path, name) < 0)
		return no_memory(path, error);
	rc = safetensors_load(&shard, full, error);
	free(full);
	if (rc)
		return rc;
	if (!shard.has_data)
		rc = error_set(error, -EINVAL, "%s: %s is not a .safetensors file", path, name);
	else
		rc = checkpoint_append(checkpoint, &shard, path, error);
	checkpoint_free(&shard);
	return rc;
}

static int compare_strings(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Loads each file that the map names once. */
static int add_shards(struct nvs_checkpoint *checkpoint, const char *path,
		      const struct json_value *map, struct nvs_error *error)
{
	const char **names = calloc(map->count + 1u, sizeof(*names));
	size_t n = 0;
	int rc = 0;

	if (!names)
		return no_memory(path, error);
	for (const struct json_value *item = map->first; item && !rc; item = item->next) {
		if (!(item->type == JSON_STRING && item->length && item->length <= 255 &&
		      strlen(item->string) == item->length && !strchr(item->string, '/') &&
		      *item->string != '.'))
			rc = error_about(error, -EINVAL, item->key, 0, 0,
					 "%s: the file of tensor %s must be a name without a "
					 "directory",
					 path, item->key);
		names[n++] = item->string;
	}
	if (!rc)
		qsort(names, n, sizeof(*names), compare_strings);
	for (size_t i = 0; i < n && !rc; i++)
		if (!i || strcmp(names[i], names[i - 1]) != 0)
			rc = add_shard(checkpoint, path, names[i], error);
	free(names);
	return rc;
}

static int load_map(struct nvs_checkpoint *checkpoint, const char *path,
		    const struct json_value *root, struct nvs_error *error)
{
	const struct json_value *map = json_member(root, "weight_map");
	int rc;

	if (!map || map->type != JSON_OBJECT || !map->count)
		return error_set(error, -EINVAL,
				 "%s: has no object \"weight_map\" with the file of each tensor",
				 path);
	rc = add_shards(checkpoint, path, map, error);
	if (!rc)
		rc = checkpoint_sort(checkpoint, path, error);
	if (rc)
		return rc;
	/* The map and the headers must name the same tensors, each in the same file. */
	if (map->duplicate)
		return error_set(error, -EINVAL, "%s: tensor %s appears twice", path,
				 map->duplicate->key);
	if (map->count != checkpoint->n + checkpoint->nunread)
		return error_set(error, -EINVAL,
				 "%s: names %u tensors, but its files have %zu: they are not of "
				 "one checkpoint",
				 path, map->count, checkpoint->n + checkpoint->nunread);
	for (const struct json_value *item = map->first; item; item = item->next) {
		const struct entry *entry = checkpoint_find(checkpoint, item->key);
		const char *file = entry ? checkpoint->paths[entry->file] : "";
		const char *slash = strrchr(file, '/');
		size_t i = entry ? checkpoint->nunread : 0;

		while (i < checkpoint->nunread && strcmp(checkpoint->unread[i].name, item->key))
			i++;
		if (i < checkpoint->nunread)
			continue;
		if (!entry || strlen(item->key) != item->key_length ||
		    strcmp(slash ? slash + 1 : file, item->string) != 0)
			return error_about(error, -EINVAL, item->key, 0, 0,
					   "%s: tensor %s is not in %s", path, item->key,
					   item->string);
	}
	return 0;
}

int index_load(struct nvs_checkpoint *checkpoint, const char *path, struct nvs_error *error)
{
	struct json_document *document = NULL;
	char *text = NULL;
	uint64_t nbytes;
	int rc = 0, fd = open_to_read(path, "index", &nbytes, error);

	*checkpoint = (struct nvs_checkpoint){.has_data = true};
	if (fd < 0)
		rc = fd;
	else if (nbytes > HEADER_MAX)
		rc = error_set(error, -EINVAL, "the index %s has more than %u bytes", path,
			       HEADER_MAX);
	else
		rc = read_json(fd, path, 0, nbytes, &text, &document, error);
	if (fd >= 0)
		close(fd);
	if (!rc)
		rc = load_map(checkpoint, path, json_root(document), error);
	json_free(document);
	free(text);
	if (rc)
		checkpoint_free(checkpoint);
	return rc;
}

static bool has_file(const struct nvs_checkpoint *checkpoint, const char *path)
{
	for (size_t i = 0; i < checkpoint->nfiles; i++)
		if (!strcmp(checkpoint->paths[i], path))
			return true;
	return false;
}

bool index_names_any(const struct nvs_checkpoint *before, const struct nvs_checkpoint *checkpoint)
{
	for (size_t i = 0; i < before->nfiles; i++)
		if (has_file(checkpoint, before->paths[i]))
			return true;
	return false;
}

void index_remove_files(const struct nvs_checkpoint *before,
			const struct nvs_checkpoint *checkpoint)
{
	for (size_t i = 0; i < before->nfiles; i++)
		if (!has_file(checkpoint, before->paths[i]))
			unlink(before->paths[i]);
}
