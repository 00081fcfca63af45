/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store: one flat range of bytes over one preallocated file or raw block device per path,
 * striped if there are several; its extents; its lock; and the manifest of a kept one. It moves no
 * tensor data: transfers go to store_file().
 *
 * Threads: store_open and store_close run alone. Of the others, any may run at once with any, and
 * with transfers. store_reserve and store_commit sleep while files grow or the drive works; a
 * second call of the same function waits for the first, and no other function waits for either.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include "base/error.h"
#include "base/weights.h"
#include "nvswap.h"

struct store;

struct store_options {
	const char *const *paths; /* directories or block devices */
	unsigned npaths;	  /* 0: the store is in host memory (memfd), for device "cpu" */
	uint32_t rank;		  /* the store is rank<N> below each path */
	bool optimizer;		  /* the store is rank<N>-optimizer */
	/* bytes, rounded up to a multiple of the unit; 0: the block size of the aio or, of a kept
	 * store, its own */
	uint64_t stripe_size;
	bool keep;
	uint64_t write_budget;	   /* bytes that all runs may write below each path; 0: any */
	bool read_only;		   /* a kept store; nothing is written, and readers share it */
	bool rollback;		   /* where the last commit is lost, the one before it will do */
	const struct nvs_log *log; /* must outlive the store */
};

/*
 * Creates or reopens the store and locks it. A directory gets nvswap/rank<N>/ (mode 0700) with the
 * file `data` and, if kept, two manifests in two copies each (mode 0600). Symbolic links are not
 * followed. Errors as nvs_engine_open.
 */
int store_open(struct store **store, struct nvs_aio *aio, const struct store_options *options,
	       struct nvs_error *error);
/* Closes the store without a commit, and unlinks it unless it is kept. No transfer may be in
 * flight. */
void store_close(struct store *store);

/*
 * ---- files.c: a store of files of others ----
 *
 * Opens duplicates of the files' descriptors, which stay the caller's. Such a store is read-only,
 * has no entries, and its nvs_file has all files. -ENOMEM, -EFBIG, errno of opening.
 */
int store_open_files(struct store **store, struct nvs_aio *aio, const struct weights *weights,
		     struct nvs_error *error);
/* Where the byte at the offset of a file of it lies in store_file(). */
uint64_t store_file_offset(const struct store *store, size_t file, uint64_t offset);
/*
 * What is read to have `nbytes` at `offset` of store_file() in memory: whole units, so that direct
 * I/O needs no copy, and the bytes asked for are `skip` bytes behind the first one; or, if they are
 * few, only those, as memory of `extent` bytes can have them.
 */
struct store_window {
	uint64_t offset, nbytes; /* that are read; less than `extent` at the end of a file */
	uint64_t extent;	 /* whole units of memory */
	uint32_t skip;
	bool small; /* reads of such windows of a file may be one transfer to segments */
};
struct store_window store_window(const struct store *store, uint64_t offset, uint64_t nbytes);
/* -ESTALE: the file that has the byte at this offset of store_file() is no longer as it was when
 * its header was read, or its path leads elsewhere. Makes system calls. */
int store_check_file(const struct store *store, uint64_t offset);
/* Whether the file that has the byte at this offset of store_file() has not been asked about
 * before: a message about it is logged once. */
bool store_report_file(struct store *store, uint64_t offset);
/* The path of the file that has the byte at this offset of store_file(). */
const char *store_file_path(const struct store *store, uint64_t offset);
/* Whether both bytes are of one file. */
bool store_same_file(const struct store *store, uint64_t a, uint64_t b);

struct nvs_file *store_file(struct store *store); /* offset 0 is the first byte for tensors */
uint32_t store_unit(
	const struct store *store); /* bytes; extents begin and end at multiples of it */
uint64_t store_bytes(const struct store *store); /* reserved on the drives; 0 of files of others */
bool store_direct(const struct store *store);
const char *store_path(const struct store *store); /* of the first member, for messages */
/*
 * Bytes that the drives were given since the store was opened: data with padding and retries,
 * labels and manifests. 0 in host memory. Any thread may call it.
 */
uint64_t store_written(const struct store *store);
/*
 * Whether store_budget_count is to be called, which replaces a small file, by one thread at a time.
 */
bool store_budget_due(const struct store *store);
void store_budget_count(struct store *store);

/*
 * Reserves an extent (rounded up to the unit) and its space on the drives for each of
 * nbytes[0..n-1], side by side and in order if possible. offsets[i] receives its offset. A length
 * of 0 takes no space. All or none are reserved. -ENOSPC: the error has the need and the free
 * space. -EROFS: the store is read-only.
 */
int store_reserve(struct store *store, const uint64_t *nbytes, size_t n, uint64_t *offsets,
		  struct nvs_error *error);
/* Releases an extent that was reserved or that the manifest named; also one of length 0. */
void store_release(struct store *store, uint64_t offset, uint64_t nbytes);

/* The number of the last commit; 0: none. */
uint64_t store_generation(struct store *store);

/* A tensor in the manifest. */
struct store_entry {
	const char *name;
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	uint64_t offset; /* of the extent with its contents */
	uint64_t spare;	 /* of the other extent, as long, for the next contents */
	bool written;	 /* it has contents */
	bool has_checksum;
	uint64_t checksum;     /* XXH3 (64 bits) of its nbytes */
	const uint64_t *shape; /* `ndim` dimensions whose product is numel; NULL: one dimension */
	size_t ndim;	       /* up to NVS_NDIM_MAX */
};

/* Bytes of the caller that a commit carries. */
struct store_note {
	const void *data;
	uint32_t nbytes; /* at most NVS_NOTE_MAX */
};

/* The kept store's entries when it was opened; none in a new one. Valid until store_close. */
const struct store_entry *store_entries(const struct store *store, size_t *n);
/* The note of its last commit then, likewise. */
struct store_note store_found_note(const struct store *store);
/*
 * Makes all completed writes durable, then replaces the manifest by these entries and the note.
 * After a crash either the old or the new manifest is found. Without `keep` it does nothing;
 * entries and a note equal to the last commit's are not written again, unless a copy of the
 * metadata is damaged. On an error the old manifest stays valid. If the data could not be made
 * durable, every later commit returns -EIO.
 * -ESTALE: its files or paths were removed or moved. -EROFS: the store is read-only.
 *
 * If a label could be neither written nor taken back, store_unsettled() is true until a later
 * commit has taken it back: a crash may leave either of the two manifests.
 *
 * Until it returns, the extents at `offset` that these entries or those of the last commit name as
 * written must not be written or released: a crash may leave either manifest. `entries`, names and
 * shapes belong to the caller and must not change meanwhile. Transfers to all other extents may be
 * in flight.
 */
int store_commit(struct store *store, const struct store_entry *entries, size_t n,
		 const struct store_note *note, struct nvs_error *error);
/*
 * Whether the extents that the entries of the failed commit name must not be written or released
 * either.
 */
bool store_unsettled(struct store *store);
/* Takes the failed commit back, if there is one; store_commit() does so too. Errors of the
 * drive. */
int store_settle(struct store *store, struct nvs_error *error);

#endif
