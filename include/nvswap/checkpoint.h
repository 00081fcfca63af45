/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: tensors and optimizer state in files that other programs read and write. Data goes
 * through the pool and the aio of the engine, in several transfers at a time, direct where the file
 * system allows it.
 *
 * Load a file into an engine whose tensors have the same names, and write them to another:
 *
 *	struct nvs_checkpoint_tensor found = {.size = sizeof(found)};
 *
 *	rc = nvs_checkpoint_open(&checkpoint, "model.safetensors", &error);
 *	for (size_t i = 0; !rc && i < nvs_checkpoint_count(checkpoint); i++) {
 *		struct nvs_checkpoint_item item = {.size = sizeof(item)};
 *
 *		rc = nvs_checkpoint_get(checkpoint, i, &found);
 *		item.tensor = nvs_tensor_find(engine, found.name);
 *		if (!rc && item.tensor)
 *			rc = nvs_checkpoint_import(engine, checkpoint, &item, 1, &error);
 *	}
 *	nvs_checkpoint_close(checkpoint);
 *	if (!rc)
 *		rc = nvs_checkpoint_export(engine, items, n, "saved.safetensors", NULL, &error);
 *
 * State of an optimizer to a file, and back:
 *
 *	rc = nvs_checkpoint_export_optimizer(optimizer, "state.safetensors", NULL, &error) ||
 *	     nvs_checkpoint_open(&checkpoint, "state.safetensors", &error) ||
 *	     nvs_checkpoint_import_optimizer(optimizer, checkpoint, NULL, &error);
 */
#ifndef NVSWAP_CHECKPOINT_H
#define NVSWAP_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "nvswap/optimizer.h"
#include "nvswap/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * A checkpoint open for reading: what its headers say. It does not change after it is opened. It
 * keeps no file open: what imports from it opens the files again, and refuses one that was replaced
 * or written to since, as a save does, with -ESTALE.
 */
struct nvs_checkpoint;

/* A tensor of a checkpoint. */
struct nvs_checkpoint_tensor {
	size_t size;	  /* set by the caller: sizeof(struct nvs_checkpoint_tensor) */
	const char *name; /* names, shapes and paths are valid until nvs_checkpoint_close */
	enum nvs_dtype dtype;
	uint64_t numel, nbytes;
	size_t ndim; /* dimensions; 0: a scalar */
	const uint64_t *shape;
	const char *path; /* the file with its data; NULL: the checkpoint has no data */
	uint64_t offset;  /* of its data in that file, in bytes */
};

/*
 * Opens a checkpoint for reading: reads and checks the header of a .safetensors file, or those of
 * all files that a .safetensors.index.json names, in its directory; if there is no file `path`, of
 * those that `path`.index.json names; of a folder as Hugging Face's tools make it, the file or the
 * index of a model or an adapter. Also reads a .safetensors header alone, as JSON without data,
 * and a file of torch.save (1.6 or later). Files may be damaged or hostile: every value is checked
 * before it is used. Headers are taken as the format's own reader takes them: keys that mean
 * nothing to it are skipped, and a tensor whose name has no bytes, more than NVS_NAME_MAX or a NUL
 * is not listed. An index names files in its own directory only; symbolic links are followed.
 * In a file of torch.save a tensor's name is its path through dictionaries and lists, with dots
 * between ("module.layers.0.weight"), or "tensor" if it was saved alone; other values are skipped.
 * A tensor below a key that is no text in UTF-8 is refused.
 * Tensors may share storages. One that is not contiguous, whose elements nvswap has no type for, or
 * that is sparse, quantized, nested, of a subclass or on the meta device is not listed; importing
 * it fails with the reason. Nothing of the file is executed: it may name what torch.load reads with
 * weights_only=True (sets, bytes, complex numbers and Counters are values too), and the loss
 * scalers and ZeRO stages of DeepSpeed's files, and nothing else. Opening takes at most 80 bytes of
 * memory for each byte of headers and an index, and 256 for each of a pickle and its directory,
 * beside 512 KiB: a tensor that lists hold many times is refused.
 * Errors:
 * -EINVAL   an argument is NULL, or a header is wrong: the error has file, tensor and reason
 * -ENODATA  a file was truncated while it was read
 * -ENOMEM
 * Others    those of open(2) and read(2)
 */
NVS_API int nvs_checkpoint_open(struct nvs_checkpoint **checkpoint, const char *path,
				struct nvs_error *error);
/* Frees a checkpoint, which may be NULL. */
NVS_API void nvs_checkpoint_close(struct nvs_checkpoint *checkpoint);
/* Returns the number of tensors of a checkpoint; 0 if `checkpoint` is NULL. */
NVS_API size_t nvs_checkpoint_count(const struct nvs_checkpoint *checkpoint);
/*
 * Describes a tensor of a checkpoint: those with index 0, 1 and so on, in the order of the headers.
 * Errors:
 * -ENOENT  `index` is not less than the number of tensors
 * -EINVAL  `checkpoint` or `tensor` is NULL, or its size is not set
 */
NVS_API int nvs_checkpoint_get(const struct nvs_checkpoint *checkpoint, size_t index,
			       struct nvs_checkpoint_tensor *tensor);

/* A tensor to export or import. */
struct nvs_checkpoint_item {
	size_t size; /* of this structure in bytes; all of an array have the same */
	struct nvs_tensor *tensor;
	/* in the checkpoint: 1 to NVS_NAME_MAX bytes of UTF-8; NULL: the tensor's own */
	const char *name;
	/* in the checkpoint: `ndim` dimensions whose product is the tensor's numel; NULL: its own
	 * shape */
	const uint64_t *shape;
	size_t ndim; /* up to NVS_NDIM_MAX */
};

/* A storage of a file of torch.save, in the caller's memory. */
struct nvs_checkpoint_storage {
	size_t size;	  /* of this structure in bytes; all of an array have the same */
	const void *data; /* must not change until the call returns; NULL only if nbytes is 0 */
	uint64_t nbytes;  /* the file has at most 2^59 bytes */
};

struct nvs_checkpoint_options {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	/*
	 * At most that many bytes of data in a file, unless one tensor has more: for
	 * "model.safetensors" the files are model-00001-of-00003.safetensors and so on, and the
	 * index model.safetensors.index.json. 0, or all data fits into one: the file `path` alone.
	 */
	uint64_t shard_bytes;
	/*
	 * The value of a file of torch.save, as torch.save pickles it, whatever `path` ends with;
	 * such as DeepSpeed's *_optim_states.pt. It has the storages "0", "1" and so on: the
	 * tensors in their order (of an optimizer, fp32 and the states of group 0, then of
	 * group 1), and behind them `storages`. The pickle is written as it is, and names of
	 * tensors are not used. NULL: a dictionary of the tensors.
	 */
	const void *pickle;
	size_t pickle_bytes; /* 1 to 10^8; without `pickle` 0 */
	const struct nvs_checkpoint_storage *storages;
	size_t nstorages; /* up to 2^24 */
};

/*
 * Writes tensors of an engine to a .safetensors file or files, including contents that are in the
 * pool only. They are written under temporary names with mode 0600, made durable, and renamed:
 * after a crash `path` is what it was before, or complete. Files of an index take effect together,
 * by the name of the index; the files of an index that is replaced are removed. A single file also
 * replaces the index `path`.index.json, and an index the single file `path`: the older one is
 * removed when the new one is durable, so that readers find the new one whichever they look for
 * first. A call that is killed leaves files `*.partial`, which the next one with that path
 * replaces. `options` may be NULL. Tensors are pinned in turn, each for the time of its write, and
 * need room in the pool. Other threads may pin and read them by nvs_tensor_swap_in at the same
 * time; of a tensor that one of them writes the file may have elements from before and others from
 * after. A `path` that ends with ".pt" has the form of torch.save: a dictionary of tensors, which
 * torch.load reads with weights_only=True. Elements of F8, U16, U32 and U64 have the form that
 * torch 2 gives them. It is one file.
 * Errors:
 * -EINVAL  an argument is NULL; two names are equal, or no UTF-8; a shape is not the tensor's;
 *          `path` ends otherwise; shard_bytes is set for a file of torch.save; there are storages
 *          and no pickle; pickle_bytes or nstorages is out of bounds; there is nothing to write; a
 *          size is not set, or differs
 * -E2BIG   a tensor exceeds the pool, or the header 10^8 bytes; fields of a later version are set
 * -EBUSY   another call, of any process, writes the same file
 * -ENOSPC  the file system has no room, or ulimit -f is too low for a file
 * -ENOMEM
 * Others   those of nvs_tensor_swap_in and nvs_tensor_wait; those of creating, writing and renaming
 *          a file. With all of them `path` is what it was, unless the error says that only the
 *          directory could not be made durable, or the older form not removed
 */
NVS_API int nvs_checkpoint_export(struct nvs_engine *engine,
				  const struct nvs_checkpoint_item *items, size_t n,
				  const char *path, const struct nvs_checkpoint_options *options,
				  struct nvs_error *error);
/*
 * Reads the contents of tensors from a checkpoint, which may have others too. They are released
 * dirty.
 * Errors:
 * -EINVAL   an argument is NULL; a size is not set, or differs; the checkpoint has no data
 * -ENOENT   the checkpoint has no tensor of that name, or one that nvs_checkpoint_open does not
 *           list; nothing was read
 * -ESTALE   it has another dtype, number of elements, or shape, where that of the item, or else of
 *           the tensor, has two dimensions or more; or a file was replaced or written to since
 *           the checkpoint was opened: open it again. Nothing was read
 * -ENODATA  a file was truncated while it was read
 * -EBADMSG  bytes do not have the CRC-32 that a file of torch.save has of their storage; the tensor
 *           has its contents of before. The storage of a tensor that is a part of it is read and
 *           compared as a whole before anything is imported
 * Others    those of nvs_tensor_pin, and of opening and reading a file. Some tensors then have
 *           their new contents and the others those of before
 */
NVS_API int nvs_checkpoint_import(struct nvs_engine *engine,
				  const struct nvs_checkpoint *checkpoint,
				  const struct nvs_checkpoint_item *items, size_t n,
				  struct nvs_error *error);

/*
 * Export and import the state of an optimizer: of each group G, fp32 tensors "G.fp32" (the master
 * weights) and those of the rule's states, of Adam "G.exp_avg" and "G.exp_avg_sq" (enum nvs_rule
 * has the names), and the number of steps "step": in a .safetensors file a U64 tensor of one
 * element; in a file of torch.save a number of the dictionary, where importing takes a tensor of
 * one element of F32, I64 or U64 too. All parts of a tile are read or written once.
 * `names` has a name for each part of each group, in this order: those of the tensors in the
 * checkpoint. A part whose name is NULL becomes 0. The number of steps is not read
 * then: set it by nvs_optimizer_set_step before the next step. NULL: the names that
 * nvs_checkpoint_export_optimizer writes.
 * Errors: those of nvs_checkpoint_export, nvs_checkpoint_import, nvs_optimizer_export and
 * nvs_optimizer_import, and
 * -EINVAL  importing from a file of torch.save: it has no whole number "step"; nothing was read
 * -EBUSY   another thread took a step meanwhile. Exporting: nothing was replaced; importing: import
 *          again, as the state is neither the imported one nor that of the steps
 * -ESTALE  importing without names: the checkpoint has states that the rule does not have, such as
 *          exp_avg_sq for Lion; nothing was read
 * -ERANGE  importing: the number of steps is above 2^53 - 1
 * After an error of nvs_optimizer_import or -EBADMSG some tiles are imported and the others are
 * not.
 */
NVS_API int nvs_checkpoint_export_optimizer(struct nvs_optimizer *optimizer, const char *path,
					    const struct nvs_checkpoint_options *options,
					    struct nvs_error *error);
NVS_API int nvs_checkpoint_import_optimizer(struct nvs_optimizer *optimizer,
					    const struct nvs_checkpoint *checkpoint,
					    const char *const *names, struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
