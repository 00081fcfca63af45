/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksums of the tensors in a .safetensors file, which lie in a file of their own: a JSON
 * object
 *
 *	{"format": "nvswap checksums 1", "bytes": BYTES, "xxh3": {NAME: "0123456789abcdef", ...}}
 *
 * with the length of the .safetensors file and, of each tensor, XXH3 (64 bits, no seed) of its data
 * in 16 hexadecimal digits. Times are not compared: a copy of a model has others, and the same
 * bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json/read.h"
#include "checkpoint/checkpoint.h"

#define FORMAT "nvswap checksums 1"

/* A file of checksums, of which file. */
struct sums_file {
	const char *path, *of;
};

static int not_in_form(const struct sums_file *file, const char *subject, const char *why,
		       struct nvs_error *error)
{
	return error_about(error, -EINVAL, subject, 0, 0,
			   "%s: %s: \"nvswap store checksum %s\" writes it anew", file->path, why,
			   file->of);
}

/* Names that the model does not have are passed over: another version may take more of them. */
static int take_sums(struct nvs_checkpoint *checkpoint, size_t i, const struct sums_file *file,
		     const struct json_value *sums, struct nvs_error *error)
{
	for (const struct json_value *item = sums->first; item; item = item->next) {
		const struct entry *found = checkpoint_find(checkpoint, item->key);
		struct entry *entry;

		if (item->earlier || item->type != JSON_STRING || item->length != 16 ||
		    strspn(item->string, "0123456789abcdef") != 16)
			return not_in_form(file, item->key,
					   item->earlier ? "it names a tensor twice"
							 : "a checksum has 16 digits 0 to 9 and a "
							   "to f",
					   error);
		if (!found || found->file != i || strlen(item->key) != item->key_length)
			continue;
		entry = &checkpoint->entries[found - checkpoint->entries];
		entry->xxh3 = strtoull(item->string, NULL, 16);
		entry->has_xxh3 = true;
	}
	for (size_t k = 0; k < checkpoint->n; k++) {
		const struct entry *entry = &checkpoint->entries[k];

		if (entry->file == i && entry->nbytes && !entry->has_xxh3)
			return error_about(error, -ESTALE, entry->name, 0, 0,
					   "%s has no checksum of tensor %s: it is of another "
					   "model, or %s was replaced since; \"nvswap store "
					   "checksum %s\" writes it anew",
					   file->path, entry->name, file->of, file->of);
	}
	return 0;
}

static int take_all(struct nvs_checkpoint *checkpoint, size_t i, const struct sums_file *file,
		    const struct json_value *root, struct nvs_error *error)
{
	const struct json_value *bytes = json_member(root, "bytes"),
				*sums = json_member(root, "xxh3");
	uint64_t nbytes = checkpoint->stamps[i].nbytes, then;

	if (!json_is_string(json_member(root, "format"), FORMAT))
		return not_in_form(file, "format", "its \"format\" is not \"" FORMAT "\"", error);
	if (!bytes || bytes->type != JSON_NUMBER || json_read_whole(bytes, &then) != JSON_WHOLE)
		return not_in_form(file, "bytes", "it lacks \"bytes\", the length of the file",
				   error);
	if (!sums || sums->type != JSON_OBJECT)
		return not_in_form(file, "xxh3", "it lacks the object \"xxh3\"", error);
	if (then != nbytes)
		return error_set(error, -ESTALE,
				 "%s is of a file of %" PRIu64 " bytes, and %s has %" PRIu64
				 ": it is of another model, or the file was replaced since; "
				 "\"nvswap store checksum %s\" writes it anew",
				 file->path, then, file->of, nbytes, file->of);
	return take_sums(checkpoint, i, file, sums, error);
}

int checksums_read(struct nvs_checkpoint *checkpoint, size_t i, const char *path, int fd,
		   uint64_t nbytes, struct nvs_error *error)
{
	struct json_document *document = NULL;
	char *text = NULL;
	int rc;

	if (nbytes > HEADER_MAX)
		return error_set(error, -EINVAL, "the file of checksums %s has more than %u bytes",
				 path, HEADER_MAX);
	rc = read_json(fd, path, 0, nbytes, &text, &document, error);
	if (!rc)
		rc = take_all(checkpoint, i, &(const struct sums_file){path, checkpoint->paths[i]},
			      json_root(document), error);
	json_free(document);
	free(text);
	return rc;
}

int checksums_load(struct nvs_checkpoint *checkpoint, size_t i, const char *directory,
		   struct nvs_error *error)
{
	const char *of = checkpoint->paths[i], *slash = strrchr(of, '/');
	uint64_t nbytes = 0;
	char *path;
	int rc = 0, fd;

	if (asprintf(&path, "%s%s%s" CHECKSUMS_SUFFIX, directory ? directory : "",
		     directory ? "/" : "", directory && slash ? slash + 1 : of) < 0)
		return error_set(error, -ENOMEM, "no memory for the checksums of %s", of);
	if (!access(path, F_OK) || errno != ENOENT) {
		rc = fd = open_to_read(path, "file of checksums", &nbytes, error);
		if (fd >= 0) {
			rc = checksums_read(checkpoint, i, path, fd, nbytes, error);
			close(fd);
		}
	} else if (directory) {
		rc = error_set(error, -ENOENT,
			       "there are no checksums %s: \"nvswap store checksum --to %s %s\" "
			       "writes them; without a directory of checksums, those beside the "
			       "file are read, if there are any",
			       path, directory, of);
	}
	free(path);
	return rc;
}
