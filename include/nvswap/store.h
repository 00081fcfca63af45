/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores as they lie on the drives, for looking at them without an engine. Labels and manifests
 * exist in several copies; what is damaged is described, and refused only by what needs it.
 *
 * List the tensors of the stores below a path:
 *
 *	const char *const paths[] = {"/mnt/nvme"};
 *	struct nvs_store_place place = {.size = sizeof(place), .paths = paths, .npaths = 1};
 *
 *	for (unsigned i = 0; !nvs_store_find(paths[0], i, &place, &error); i++) {
 *		struct nvs_store_info info = {.size = sizeof(info)};
 *		struct nvs_store_tensor tensor = {.size = sizeof(tensor)};
 *
 *		if (nvs_store_open(&place, NVS_STORE_LOCK, &store, &error))
 *			continue;
 *		nvs_store_get_info(store, &info);
 *		printf("%s, commit %llu\n", info.id, (unsigned long long)info.commit);
 *		for (uint64_t t = 0; !nvs_store_get_tensor(store, t, &tensor); t++) {
 *			struct nvs_store_verdict verdict = {.size = sizeof(verdict)};
 *
 *			rc = nvs_store_verify(store, aio, t, 1, &verdict, &error);
 *			printf("%s: %s\n", tensor.name, verdict.problem);
 *		}
 *		nvs_store_close(store);
 *	}
 *
 * Repair a store, or give it up:
 *
 *	if (nvs_store_repair(&place, 0, NULL, &error))
 *		rc = nvs_store_remove(&place, &error);
 *
 * The copies of labels and manifests:
 *
 *	struct nvs_store_copy copy = {.size = sizeof(copy)};
 *
 *	for (unsigned i = 0; !nvs_store_get_copy(store, i, &copy); i++)
 *		printf("%s at %llu: %s\n", copy.path, (unsigned long long)copy.offset, copy.problem);
 */
#ifndef NVSWAP_STORE_H
#define NVSWAP_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap/dtype.h"
#include "nvswap/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct nvs_aio;

/* A store that was opened for a look. */
struct nvs_store;

/* Where a store lies. A raw device holds one store, whichever rank the place has. */
struct nvs_store_place {
	size_t size;		  /* of this structure in bytes; the caller sets it */
	const char *const *paths; /* as nvme_path has them, in their order; the caller's */
	unsigned npaths;	  /* 1 to NVS_PATHS_MAX */
	uint32_t rank;
	bool optimizer; /* the store of offload_optimizer, not of offload_param */
};

enum nvs_store_state {
	NVS_STORE_KEPT,	     /* a kept store that an engine can open */
	NVS_STORE_TEMPORARY, /* not kept: of a running engine, or left by one that was killed */
	NVS_STORE_PARTIAL,   /* some of its paths are missing, or out of order */
	/* No copy of a label, or of the last commit's manifest, is valid; or the label is of an
	 * earlier commit than a manifest proves; or data is truncated or missing. */
	NVS_STORE_DAMAGED,
};

enum nvs_store_flags {
	/* Nobody may write to it until nvs_store_close: a lock that other readers share. */
	NVS_STORE_LOCK = 1,
};

struct nvs_store_info {
	size_t size; /* of this structure in bytes; the caller sets it */
	enum nvs_store_state state;
	uint32_t rank;
	bool optimizer;
	unsigned member, nmembers; /* index of the first path in the store; paths of the store */
	char id[33];		   /* the store's random id in hexadecimal digits */
	uint32_t unit;		   /* bytes; extents begin and end at multiples of it */
	uint64_t stripe_size;	   /* bytes */
	uint64_t commit;	   /* number of the last commit; 0: none */
	uint64_t commit_time;	   /* when it was made, seconds since 1970; 0: unknown */
	char writer[16];	   /* version of nvswap that made it: "0.2.0"; "" if unknown */
	uint64_t tensors;	   /* in the last commit */
	uint64_t tensor_bytes;	   /* their bytes together */
	uint64_t note_bytes;	   /* of the note that it carries (nvs_engine_set_note) */
	const void *note;	   /* valid until nvs_store_close; NULL: none */
	uint64_t data_bytes;	   /* space for data on the drives */
	uint64_t free_bytes;	   /* of it, in no extent of the last commit */
	unsigned copies;	   /* of labels and manifests, see nvs_store_get_copy */
	unsigned damaged_copies;
	bool in_use;	     /* an engine had it open for writing */
	int owner;	     /* process id of that engine; 0: unknown */
	char owner_name[64]; /* name of that process; "" if unknown */
	char problem[1024];  /* why an engine can't open it, and what to do; "" if it can */
	bool truncated;	     /* its data is, and nothing else is wrong; nvs_store_verify names what
			      * is lost */
};

enum nvs_store_copy_kind { NVS_STORE_LABEL, NVS_STORE_MANIFEST };

enum nvs_store_copy_state {
	NVS_STORE_COPY_CURRENT, /* of the last commit */
	NVS_STORE_COPY_OLDER,	/* of the commit before, or cut off between two copies: no damage */
	NVS_STORE_COPY_UNUSED,	/* it has no readable commit, and none is needed there */
	NVS_STORE_COPY_DAMAGED, /* or unreadable */
};

/* A copy of a label or a manifest. */
struct nvs_store_copy {
	size_t size; /* of this structure in bytes; the caller sets it */
	enum nvs_store_copy_kind kind;
	enum nvs_store_copy_state state;
	const char *path; /* of its file or device; valid until nvs_store_close */
	uint64_t offset;  /* bytes */
	uint64_t commit;  /* number of the commit that it has; 0: none, or unknown */
	char problem[96]; /* what is wrong with it; "" if nothing */
};

/* A tensor of the last commit. */
struct nvs_store_tensor {
	size_t size;	  /* of this structure in bytes; the caller sets it */
	const char *name; /* valid until nvs_store_close */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	bool written;	   /* it has contents */
	bool has_checksum; /* its contents have a checksum: */
	uint64_t checksum; /* XXH3, 64 bits */
	const char *
		path; /* of the file or device with its first byte, valid until close; NULL: not given */
	uint64_t offset;       /* of its first byte in that file, bytes */
	size_t ndim;	       /* dimensions; 0: a scalar */
	const uint64_t *shape; /* valid until nvs_store_close */
};

/*
 * Finds the stores below a path in the order of their ranks: *place receives rank and kind of
 * number `index`, from 0; its `paths` and `npaths` stay unchanged.
 * Errors:
 * -EINVAL       an argument is NULL, or the size is not set
 * -ENODATA      there are no more
 * -EMEDIUMTYPE  something else is there, or another user's
 * Others        those of open(2)
 */
NVS_API int nvs_store_find(const char *path, unsigned index, struct nvs_store_place *place,
			   struct nvs_error *error);
/*
 * Opens a store for a look: reads its labels and its manifest. Nothing is written. Without
 * NVS_STORE_LOCK this may happen beside a running engine, whose last commit is seen. `*store` is
 * the caller's until nvs_store_close. A damaged or partial store is no error: nvs_store_get_info
 * describes it.
 * Errors:
 * -EINVAL       an argument is NULL or out of its bounds, or a flag is unknown
 * -E2BIG        fields of a later version are set (see libnvswap)
 * -ENODATA      no store is there, on none of the paths
 * -EMEDIUMTYPE  something else is there, another user's, or a format of another version
 * -EBUSY        with NVS_STORE_LOCK: a process has it open for writing, which the error names
 * -ENOMEM
 * Others        those of open(2)
 */
NVS_API int nvs_store_open(const struct nvs_store_place *place, unsigned flags,
			   struct nvs_store **store, struct nvs_error *error);
/* Closes a store that was opened for a look; NULL is allowed. */
NVS_API void nvs_store_close(struct nvs_store *store);
/*
 * Describes a store as it was opened.
 * Errors:
 * -EINVAL  an argument is NULL, or the size is not set
 */
NVS_API int nvs_store_get_info(const struct nvs_store *store, struct nvs_store_info *info);
/*
 * Describes a copy of the metadata: number `index`, from 0, of the labels of each member, then the
 * manifests.
 * Errors:
 * -EINVAL   an argument is NULL, or the size is not set
 * -ENODATA  there are no more
 */
NVS_API int nvs_store_get_copy(const struct nvs_store *store, unsigned index,
			       struct nvs_store_copy *copy);
/*
 * Describes a tensor of the last commit: number `index`, from 0 in the order of registration.
 * Errors:
 * -EINVAL   an argument is NULL, or the size is not set
 * -ENODATA  there are no more
 */
NVS_API int nvs_store_get_tensor(const struct nvs_store *store, uint64_t index,
				 struct nvs_store_tensor *tensor);

enum nvs_store_finding {
	NVS_STORE_INTACT,     /* every byte was read, and the checksum matches */
	NVS_STORE_UNCHECKED,  /* every byte was read; there is no checksum */
	NVS_STORE_EMPTY,      /* it has no contents */
	NVS_STORE_CORRUPT,    /* its bytes do not match its checksum */
	NVS_STORE_UNREADABLE, /* the drive failed */
};

/* What nvs_store_verify found of a tensor. */
struct nvs_store_verdict {
	size_t size; /* of this structure in bytes; all of an array have the same */
	enum nvs_store_finding finding;
	char problem[512]; /* with the tensor, path and offset; "" if nothing is wrong */
};

/*
 * Compares tensors with their checksums: reads the contents of `first` to `first` + `n` - 1. It
 * goes on after damage: verdicts[0] to verdicts[n - 1] say what was found. It uses 32 MiB of
 * memory. The store must be NVS_STORE_KEPT or truncated, and open with NVS_STORE_LOCK; `aio` must
 * be the same in each call, and stay open until nvs_store_close. One thread at a time for each
 * store.
 * Errors:
 * -EINVAL   an argument is NULL or out of its bounds, the store is not locked, or another aio
 * -EUCLEAN  the store is neither NVS_STORE_KEPT nor truncated
 * -ENOMEM
 */
NVS_API int nvs_store_verify(struct nvs_store *store, struct nvs_aio *aio, uint64_t first, size_t n,
			     struct nvs_store_verdict *verdicts, struct nvs_error *error);
/*
 * Removes a store that no process holds: all its tensors, and of a raw device, its labels and
 * manifests. Parts that are missing already are no error, be it the data of a path or all of it, if
 * anything is left: `paths` has all of the store's, in their order. Where no store is, its empty
 * directories are removed. What can't be recognized on a device without a valid label stays.
 * Errors: those of nvs_store_open with NVS_STORE_LOCK, also if a process reads or removes it, and
 * -EUCLEAN  the store lies on other paths than these, or on more of them
 * Others    those of unlink(2) and write(2)
 */
NVS_API int nvs_store_remove(const struct nvs_store_place *place, struct nvs_error *error);

enum nvs_store_repair_flags {
	/* Go back to the commit before if no copy of the last one is valid. */
	NVS_STORE_ROLLBACK = 1,
};

/* What nvs_store_repair has done. */
struct nvs_store_repairs {
	size_t size;		    /* of this structure in bytes; the caller sets it */
	unsigned labels, manifests; /* copies written anew */
	uint64_t commit;	    /* the last commit now */
	uint64_t lost;		    /* the number that it had before a rollback; 0: none */
};

/*
 * Repairs a store: writes damaged copies of labels and of the last commit's manifest anew from
 * valid ones. No tensor is touched. `repairs` may be NULL.
 * Errors: those of nvs_store_open with NVS_STORE_LOCK, also if a process reads it, and
 * -EINVAL   a flag is unknown
 * -EUCLEAN  no valid copy is left, the label is of an earlier commit than a manifest proves and
 *           NVS_STORE_ROLLBACK is not given, the data is truncated, or the store is not kept or
 *           partial; nothing was written
 * Others    those of write(2)
 */
NVS_API int nvs_store_repair(const struct nvs_store_place *place, unsigned flags,
			     struct nvs_store_repairs *repairs, struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
