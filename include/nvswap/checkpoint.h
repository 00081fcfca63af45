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

/*
 * DeepSpeed's universal checkpoints (version 0.4): a directory with files `zero/NAME/fp32.pt`
 * and one for each state of the rule for each parameter, whole, and `zero/optimizer_state.pt` with
 * the number of steps. The states are `exp_avg.pt` and `exp_avg_sq.pt` of Adam, `exp_avg.pt` of
 * Lion, `momentum_buffer.pt` of SGD and, as DeepSpeed calls its sum, `exp_avg_sq.pt` of Adagrad;
 * others are not read, since DeepSpeed writes zeros for those that an optimizer does not have.
 * Any number of ranks loads them, so a parameter need not lie in one optimizer.
 *
 * A parameter that is a whole group of the optimizer:
 *
 *	struct nvs_checkpoint_param param = {
 *		.size = sizeof(param), .name = "lm_head.weight", .group = 0, .numel = numel};
 *
 *	rc = nvs_checkpoint_export_universal(optimizer, &param, 1, "run/step50", NULL, &error) ||
 *	     nvs_checkpoint_import_universal(optimizer, &param, 1, "run/step50", &error);
 */

/* A parameter, and where an optimizer has its elements: all of them, or this rank's part. */
struct nvs_checkpoint_param {
	size_t size;	  /* of this structure in bytes; all of an array have the same */
	const char *name; /* 1 to 255 bytes; a name for a directory, without '/' */
	/*
	 * Elements `first` to first + numel of the parameter are elements `offset` to offset +
	 * numel of the group with index `group`. numel 0: this rank has none of them. ZeRO-3 gives
	 * rank R of W elements from R * ceil(N / W) on, ceil(N / W) at most.
	 */
	size_t group;
	uint64_t offset, numel, first;
	/* of the whole parameter; NULL: one dimension of first + numel elements, in one rank
	 * alone */
	const uint64_t *shape;
	size_t ndim; /* up to 64 */
};

/*
 * Gathers what all ranks pass, as MPI_Allgather and torch.distributed.all_gather do: returns the
 * number of ranks after all of them have called it, or a negative errno. *all becomes their bytes,
 * `nbytes` of rank 0, of rank 1 and so on, in memory that stays as it is, aligned to 8 bytes, until
 * the next call or the end of nvs_checkpoint_export_universal. All ranks call it equally often with
 * the same nbytes, up to 1024.
 */
typedef int nvs_gather_fn(void *arg, const void *own, size_t nbytes, const void **all);

struct nvs_universal_options {
	size_t size; /* of this structure in bytes; the caller sets it, see nvs_error */
	/* The contents of optimizer_state.pt; NULL: a file with the number of steps alone. */
	const void *optimizer_state;
	size_t optimizer_state_bytes;
	/*
	 * Ranks that write one checkpoint together, to one file system; world 0 or 1: alone. If one
	 * of several ranks passes world 0 or 1, no gather, or options that are refused for their
	 * size, it does not call it, and the others wait for it in theirs.
	 */
	unsigned rank, world;  /* 0 to world - 1; up to 65536 */
	nvs_gather_fn *gather; /* needed from two ranks on */
	void *gather_arg;
};

/*
 * Writes the state of parameters to a universal checkpoint: in the directory `path`, such as
 * "run/global_step50", which is made if it is missing (mode 0700; not its parents). All files are
 * written below `path`/zero.partial and made durable; then that becomes `path`/zero in place of the
 * one that is there, and at last "latest_universal" beside `path` has its name. After a crash
 * `path`/zero is what it was before, or complete; on a file system that can't exchange two names
 * (FUSE, NFS) a crash may leave what it was before as `path`/zero.before and no `path`/zero:
 * nvs_checkpoint_import_universal reads that, the next export renames it back, and other programs
 * find it after `mv zero.before zero`. What else belongs to a checkpoint of DeepSpeed,
 * such as its files of model states, is in `path` already or is not needed. Elements of a group
 * that belong to no parameter are not written. Of several ranks each writes its elements; all pass
 * the same parameters in the same order, with the same names and shapes, and together give each
 * element of each parameter once. A rank that fails ends the call of all. All parts of a tile
 * are read once. Up to 32 files stay open, and for small parameters up to 16 for each tile in
 * flight. `options` may be NULL.
 * Errors:
 * -EINVAL     an argument is NULL; a name is no directory's, or appears twice; elements lie beyond
 *             the group, in two parameters, or beyond the shape; `path` ends with "." or ".."; a
 *             rank is out of bounds; gather is NULL with several; a size is not set, or differs
 * -EINVAL     on all ranks: no rank has some elements of a parameter, or two have them; the error
 *             names parameter, ranks and elements, and `path`/zero is what it was; or two pass the
 *             same rank, or the ranks do not pass the same world
 * -E2BIG      fields of a later version are set
 * -EBUSY      another process writes to `path`; a step has failed and is not finished; another
 *             thread took a step meanwhile
 * -EEXIST     `path`/zero, `path`/zero.partial or `path`/zero.before has other files than this call
 *             writes
 * -ECANCELED  another rank has failed: the error names it
 * -ENOSPC     the file system has no room, or ulimit -f is too low for a file
 * -ENOMEM
 * Others      those of nvs_optimizer_export, of gather, and of making, writing and renaming files
 */
NVS_API int nvs_checkpoint_export_universal(struct nvs_optimizer *optimizer,
					    const struct nvs_checkpoint_param *params, size_t n,
					    const char *path,
					    const struct nvs_universal_options *options,
					    struct nvs_error *error);
/*
 * Reads the state of parameters from a universal checkpoint, also one that DeepSpeed wrote: of all
 * their elements, or of this rank's, and the number of steps. Elements that belong to no parameter
 * become 0 in all parts. The checkpoint may have other parameters.
 * Errors: those of nvs_checkpoint_export_universal for `params`, and
 * -ENOENT   `path` has no such directory, or not this parameter
 * -ESTALE   it has another type or number of elements, or another shape, where both have two
 *           dimensions or more, and nothing was read; or a file was replaced or written to since
 *           the call had read its header, and tiles may be imported
 * -EINVAL   a file is damaged: the error has file and reason
 * -EBADMSG  a parameter's bytes, or those of the storage that it is a part of, do not have the
 *           CRC-32 that its file has of them, which is compared if the whole parameter is read;
 *           tiles may be imported
 * -EBUSY    another thread took a step meanwhile: import again
 * -ERANGE   the number of steps is above 2^53 - 1
 * Others    those of nvs_optimizer_import, after which some tiles are imported and the others are
 *           not, and of opening and reading files
 */
NVS_API int nvs_checkpoint_import_universal(struct nvs_optimizer *optimizer,
					    const struct nvs_checkpoint_param *params, size_t n,
					    const char *path, struct nvs_error *error);

#ifdef __cplusplus
}
#endif

#endif
