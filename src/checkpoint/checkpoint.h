/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint consists of, for reading and for writing: tensors, and their places in files.
 * The layer uses the public interface of the layers below it; all data goes through nvs_aio_submit.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	files: entries draft
 *	safetensors: header index
 *	torch: zip pickle_names pickle read write
 *	checkpoint: checkpoint placement reading writing
 *	tensors: tensors checksums weights
 *	state: state
 */
#ifndef CHECKPOINT_CHECKPOINT_H
#define CHECKPOINT_CHECKPOINT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/weights.h"
#include "nvswap.h"

/* Bytes: the limit of the safetensors library, and here of a pickle and an index too. */
#define HEADER_MAX  100000000u
#define ENTRIES_MAX (16u << 20)
/*
 * What opening a checkpoint takes of memory at most: for `nbytes` of headers and an index, or of
 * the pickle and the directory of a file of torch.save.
 */
#define HEADER_BYTES(nbytes) (JSON_BYTES(nbytes) + 16 * (size_t)(nbytes))
#define TORCH_BYTES(nbytes)  ((512u << 10) + 256 * (size_t)(nbytes))
/* Bytes of memory for the JSON of a header or an index. */
#define JSON_MEMORY_MAX ((size_t)2 << 30)
/* Below this limit, rounding up and counting elements of any type cannot overflow. */
#define DATA_MAX (1ull << 59)

/* A tensor in a file. */
struct entry {
	char *name;
	enum nvs_dtype dtype;
	bool nameless; /* of a header that is being read: nvswap can't have its name */
	uint64_t numel, nbytes;
	uint64_t *shape; /* `ndim` dimensions; NULL: none */
	size_t ndim;
	size_t file;	 /* index in `paths` */
	uint64_t offset; /* of its data in the file */
	uint32_t crc;	 /* CRC-32 of the data, if the file has one */
	bool has_crc;
	bool has_xxh3;
	uint64_t xxh3;	  /* XXH3 (64 bits) of the data, of a file of checksums */
	uint32_t storage; /* index in `storages` of what it is all or a part of */
};

/* A tensor of a file that can't be imported. */
struct unread {
	char *name;
	const char *why;
};

/* A record of a file of torch.save: a storage of tensors, or other data. */
struct storage {
	uint64_t offset, nbytes;
	uint32_t crc;
};

struct nvs_checkpoint {
	char **paths;	      /* of the files with data */
	struct stamp *stamps; /* of the files as their headers were read; NULL: to be written */
	size_t nfiles;
	bool has_data; /* false: a header alone */
	bool of_torch; /* a file of torch.save */
	struct entry *entries;
	size_t n;
	uint64_t nbytes;
	struct unread *unread;
	size_t nunread;
	struct storage *storages; /* of a file of torch.save */
	size_t nstorages;
	size_t *sorted; /* indices of the entries, by name; NULL: not sorted yet */
};

/* ---- entries.c ---- */

/* Frees all that *checkpoint owns, and zeroes it. */
void checkpoint_free(struct nvs_checkpoint *checkpoint);
/* Makes an empty checkpoint of one file, which `fd` has open. -ENOMEM, errno of fstat(2). */
int checkpoint_of_file(struct nvs_checkpoint *checkpoint, const char *path, int fd,
		       struct nvs_error *error);
/* Moves all that `from`, of .safetensors files, has to the end of the checkpoint, which must be
 * sorted anew. -EINVAL, -ENOMEM: nothing has moved. `what` as below. */
int checkpoint_append(struct nvs_checkpoint *checkpoint, struct nvs_checkpoint *from,
		      const char *what, struct nvs_error *error);
/* Sorts by name. -ENOMEM; -EINVAL: two have the same name. `what` stands for it in errors. */
int checkpoint_sort(struct nvs_checkpoint *checkpoint, const char *what, struct nvs_error *error);
/* The entry of that name; NULL: none. It must have been sorted. */
const struct entry *checkpoint_find(const struct nvs_checkpoint *checkpoint, const char *name);
/* Sets the error to -ENOENT for a tensor that it does not have or that can't be imported, and
 * returns that. */
int checkpoint_lacks(const struct nvs_checkpoint *checkpoint, const char *name,
		     struct nvs_error *error);
/* Sets an entry without a place. `shape` NULL: one dimension. -ENOMEM. */
int entry_make(struct entry *entry, const char *name, enum nvs_dtype dtype, uint64_t numel,
	       const uint64_t *shape, size_t ndim);
/* Sets the error to -EBADMSG for bytes that do not have the checksum that the file has of them, and
 * returns that. */
int entry_damaged(const struct nvs_checkpoint *checkpoint, const struct entry *entry,
		  struct nvs_error *error);
/* Whether the tensor is only a part of its storage, so that the file has no CRC-32 of the tensor
 * itself. */
bool entry_is_view(const struct nvs_checkpoint *checkpoint, const struct entry *entry);

/*
 * Opens a regular file: a descriptor, whose file has *nbytes, or -EINVAL or errno. `what` stands
 * for the file in errors.
 */
int open_to_read(const char *path, const char *what, uint64_t *nbytes, struct nvs_error *error);
/* Reads `nbytes` at the offset: 0, -ENODATA if the file ends before, or errno. */
int read_at(int fd, const char *path, uint64_t offset, void *data, size_t nbytes,
	    struct nvs_error *error);

struct json_document;
/*
 * Reads at most HEADER_MAX bytes of JSON, to which the document refers. The caller frees both, also
 * after an error.
 */
int read_json(int fd, const char *path, uint64_t offset, uint64_t nbytes, char **text,
	      struct json_document **document, struct nvs_error *error);

/* -ESTALE: the file that is open has another stamp. */
int stamp_check(const struct stamp *stamp, int fd, const char *path, struct nvs_error *error);

/* ---- checkpoint.c ---- */

/*
 * The file or the index that the path stands for: of a folder as Hugging Face's tools make it, the
 * one in it, also of torch.save if `of_torch`. -ENOENT, -ENAMETOOLONG.
 */
int checkpoint_find_path(const char *path, bool of_torch, char found[PATH_MAX],
			 struct nvs_error *error);

/* ---- safetensors/header.c ---- */

/*
 * Reads and checks the header of one file into an empty checkpoint. A file is taken for safetensors
 * by its name or contents, else for a header alone. -EINVAL and errno of opening and
 * reading.
 */
int safetensors_load(struct nvs_checkpoint *checkpoint, const char *path, struct nvs_error *error);

/* ---- safetensors/index.c: several files ---- */

#define INDEX_SUFFIX ".index.json"

/* Reads an index and the headers of all its files, as safetensors_load. */
int index_load(struct nvs_checkpoint *checkpoint, const char *path, struct nvs_error *error);
/* Whether the index that was loaded names one of the files that `checkpoint` consists of. */
bool index_names_any(const struct nvs_checkpoint *before, const struct nvs_checkpoint *checkpoint);
/* Removes the files that the index named before, and that `checkpoint` does not consist of. */
void index_remove_files(const struct nvs_checkpoint *before,
			const struct nvs_checkpoint *checkpoint);

/* ---- torch/: see torch/torch.h ---- */

/*
 * Reads the tensors of a file of torch.save. *is_torch false: it is none, or can't be opened, and
 * nothing was done. -EINVAL, -ENODATA, -ENOMEM, errno of reading.
 */
int torch_load(struct nvs_checkpoint *checkpoint, const char *path, bool *is_torch,
	       struct nvs_error *error);

/* A whole number of a dictionary. */
struct torch_count {
	const char *name;
	uint64_t value;
};

/* Where a record of a zip lies. */
struct zip_place {
	uint64_t header_at, data_at, nbytes;
	uint32_t crc;
};

struct torch {
	char *lead; /* the records before the data */
	size_t lead_bytes;
	struct zip_place lead_places[3];
	uint32_t *crcs; /* of the entries' data */
	uint64_t directory_at, file_bytes;
};

/* ---- placement.c: a checkpoint to be written ---- */

/*
 * Distributes the entries over files of at most `shard_bytes` of data (0: one file) and gives them
 * their offsets. headers[i] and header_bytes[i], which the caller frees, are the first bytes of
 * file i. -EINVAL, -E2BIG, -ENOMEM.
 */
struct placement {
	char **headers;
	size_t *header_bytes;
	uint64_t *file_bytes;
	char *index_path; /* NULL: a single file */
	/* The path of the checkpoint's other form: an index for a single file, and the reverse.
	 * NULL: a file of torch.save, which has no other. */
	char *other_path;
	char *index;
	size_t index_bytes;
};
int placement_make(struct placement *placement, struct nvs_checkpoint *checkpoint, const char *path,
		   uint64_t shard_bytes, struct nvs_error *error);
/* A single file of another format, whose headers and offsets are not made here; `named`: it has the
 * names of tensors. */
int placement_make_single(struct placement *placement, struct nvs_checkpoint *checkpoint,
			  const char *path, bool named, struct nvs_error *error);
void placement_free(struct placement *placement, const struct nvs_checkpoint *checkpoint);

/* ---- draft.c: files that are written; drafts appear when they are complete ---- */

#define PARTIAL_SUFFIX ".partial"
#define WRITES_MAX     3 /* requests of one sink_write */

/* A file to write to: whole pages directly, the ends of data through the page cache, so that
 * neighbours need no page of their own. */
struct sink {
	struct nvs_file *direct, *buffered; /* direct NULL: all goes through the page cache */
};

/* From a descriptor of the caller's, which it may close. Call sink_close also after an error. */
int sink_open(struct sink *sink, struct nvs_aio *aio, int fd, struct nvs_error *error);
/*
 * Submits the writing of data at any offset. Stores up to WRITES_MAX requests; after an error those
 * already submitted.
 */
int sink_write(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
	       uint64_t offset, struct nvs_request **requests, size_t *n, struct nvs_error *error);
/* sink_write, and waits. */
int sink_write_now(const struct sink *sink, struct nvs_aio *aio, const void *data, uint64_t nbytes,
		   uint64_t offset, struct nvs_error *error);
/* Waits for its transfers. */
void sink_close(struct sink *sink);

struct draft {
	char *path, *partial;
	struct sink sink;
	int fd; /* holds the lock of `partial` */
	bool renamed;
};

/* Creates and locks the temporary file, with room for `nbytes`. -EBUSY: another one has it. */
int draft_open(struct draft *draft, struct nvs_aio *aio, const char *path, uint64_t nbytes,
	       struct nvs_error *error);
/* Waits for the requests and closes them; the first error. */
int requests_finish(struct nvs_aio *aio, struct nvs_request **requests, size_t n,
		    struct nvs_error *error);
int draft_sync(struct draft *draft, struct nvs_error *error);
int draft_rename(struct draft *draft, struct nvs_error *error);
/* Makes the names in the directory of `path` durable. */
int sync_directory(const char *path, struct nvs_error *error);
/*
 * Waits until no other call has the lock of the directory of `path`, and returns a descriptor,
 * whose closing ends the lock.
 */
int lock_directory(const char *path, struct nvs_error *error);
/* Removes a file, durably, if there is one. */
int remove_durably(const char *path, struct nvs_error *error);
/* Waits for its transfers; removes the temporary file unless it was renamed. */
void draft_close(struct draft *draft);
/* A file of that content; its name is not durable yet. */
int draft_write(struct nvs_aio *aio, const char *path, const void *data, size_t nbytes,
		struct nvs_error *error);

/* ---- writing.c: all files of a checkpoint, from creating to renaming them ---- */

/* Copies the caller's options, or the defaults for NULL. -EINVAL, -E2BIG. */
int options_in(struct nvs_checkpoint_options *into, const struct nvs_checkpoint_options *options,
	       struct nvs_error *error);

/* Whether the file gets the form of torch.save. */
bool writes_torch(const char *path, const struct nvs_checkpoint_options *options);

struct writing {
	struct nvs_checkpoint plan;
	struct placement placement;
	struct torch torch; /* with `crcs` NULL: a .safetensors file */
	struct draft *drafts;
	struct nvs_aio *aio;
	bool complete; /* the index has its name */
};

/*
 * Lays the plan out and creates its files with their headers and the caller's storages, which are
 * added to the plan: its entries have room for them. `count` stands beside the tensors in a
 * dictionary of torch.save; NULL: none. writing_end follows in any case.
 */
int writing_begin(struct writing *writing, struct nvs_aio *aio, const char *path,
		  const struct nvs_checkpoint_options *options, const struct torch_count *count,
		  struct nvs_error *error);
/* Makes all data durable, and the files known by their names. */
int writing_commit(struct writing *writing, struct nvs_error *error);
/* Ends it, with all transfers in flight; without a commit, nothing has changed. */
void writing_end(struct writing *writing);

/* ---- checksums.c: files beside .safetensors files ---- */

#define CHECKSUMS_SUFFIX ".checksums"

/*
 * Gives the entries of file `i` the checksums of the file that has them, in that directory (NULL:
 * beside the file), if there is one. The checkpoint is sorted. -EINVAL: it has another form;
 * -ESTALE: it is of a file of another length or of other tensors; -ENOENT: that directory has none.
 * -ENOMEM, errno of opening and reading.
 */
int checksums_load(struct nvs_checkpoint *checkpoint, size_t i, const char *directory,
		   struct nvs_error *error);
/* The same of a file that is open, of `nbytes`; `path` stands for it in errors. */
int checksums_read(struct nvs_checkpoint *checkpoint, size_t i, const char *path, int fd,
		   uint64_t nbytes, struct nvs_error *error);

/* ---- reading.c ---- */

struct reading {
	const struct nvs_checkpoint *checkpoint;
	struct nvs_file **files;
	struct nvs_aio *aio;
	/* For tensors that are parts of their storages; NULL until there is one: */
	bool *checked; /* by storage */
	char *memory;
};

/* Opens file `i` of a checkpoint, which must be as it was when its header was read: a descriptor,
 * -ESTALE, or errno of opening. */
int reading_open(const struct nvs_checkpoint *checkpoint, size_t i, struct nvs_error *error);
int reading_begin(struct reading *reading, struct nvs_aio *aio,
		  const struct nvs_checkpoint *checkpoint, struct nvs_error *error);
/*
 * Compares the storage of an entry that is a part of it, once. -EBADMSG: it is damaged; -ENOMEM,
 * and errors of reading.
 */
int reading_check(struct reading *reading, const struct entry *entry, struct nvs_error *error);
void reading_end(struct reading *reading);

#endif
