/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's universal checkpoints: a directory for each parameter with a file for each part. What
 * the files are called and where the data lie in them is the same for all ranks.
 */
#ifndef CHECKPOINT_UNIVERSAL_H
#define CHECKPOINT_UNIVERSAL_H

#include <fcntl.h>
#include <pthread.h>

#include "checkpoint/state/state_move.h"

#define UNIVERSAL_STATE "optimizer_state.pt"
#define PLACE_MAX	320 /* bytes of a name below the directory */

/* A parameter as the caller gave it. */
struct param {
	const char *name;
	const uint64_t *shape; /* NULL: one dimension */
	size_t ndim;
	uint64_t numel; /* of the whole */
	struct fragment fragment;
};

/* Parameters, and the elements of an optimizer that belong to them. */
struct params {
	struct param *all; /* in the caller's order */
	size_t n;
	const struct rule *rule;    /* of the optimizer */
	struct fragment *fragments; /* those with elements, by group and offset */
	size_t *owners;		    /* the parameter of each fragment */
	size_t nfragments;
};

/* Reads the caller's array and checks it. Call params_free in any case. -EINVAL, -E2BIG,
 * -ENOMEM. */
int params_read(struct params *params, struct nvs_optimizer *optimizer,
		const struct nvs_checkpoint_param *from, size_t n, struct nvs_error *error);
void params_free(struct params *params);
/* A checksum of what all ranks must agree on: names and shapes. */
uint32_t params_sum(const struct params *params);

/* The name of a part in the checkpoint: DeepSpeed calls Adagrad's sum exp_avg_sq. */
const char *universal_part_name(const struct rule *rule, unsigned part);
/* The file of a part, below the directory of the files. */
void param_place(const struct params *params, const struct param *param, unsigned part,
		 char place[PLACE_MAX]);
/* Lays out the file of one part of a parameter: a tensor alone. Free both in any case. -ENOMEM. */
int param_lay_out(const struct param *param, struct nvs_checkpoint *plan, struct torch *torch,
		  struct nvs_error *error);

/* The CRC-32 of each part of each parameter, put together from I/Os in any order. */
void sum_add(uint32_t *sums, const struct params *params, const struct state_io *io);

/* ---- ranks.c: ranks that write one checkpoint ---- */

/* Copies the caller's options, or the defaults for NULL. -EINVAL, -E2BIG. */
int universal_options_in(struct nvs_universal_options *into,
			 const struct nvs_universal_options *options, struct nvs_error *error);
#define GATHER_MAX 1024u /* bytes of a rank, at a time */

/*
 * Gathers up to GATHER_MAX bytes of each rank: *all is theirs, in the order of the ranks, and valid
 * until the next call. -EINVAL: they are not of `world` ranks; errno of gather.
 */
int ranks_gather(const struct nvs_universal_options *options, const void *own, size_t nbytes,
		 const void **all, struct nvs_error *error);
/*
 * Waits for all ranks, which tell their results, also one whose options were refused: 0 if none has
 * failed, else this rank's `rc`, or -ECANCELED with the error of another one. -EINVAL: the ranks
 * differ in `world` or `sum`, or two have one number. Also errno of gather.
 */
int ranks_meet(const struct nvs_universal_options *options, int rc, uint32_t sum,
	       struct nvs_error *error);

/* The elements of one rank. */
struct run {
	unsigned rank;
	uint64_t first, end;
};

/*
 * Gathers where all ranks, which agree on the parameters, have their elements. -EINVAL on all: an
 * element of a parameter is given by no rank or by two; errno of gather. `runs` has room for one of
 * each rank.
 */
int cover_check(const struct params *params, const struct nvs_universal_options *options,
		struct run *runs, struct nvs_error *error);

/* ---- tree.c: the directory of a checkpoint's files ---- */

struct tree {
	const char *path; /* of the checkpoint, for errors */
	const char *name; /* of the files' directory: zero, zero.partial or zero.before */
	int top;	  /* descriptor of `path`; the rank that makes the files holds its lock */
	int zero;	  /* of the files' directory */
	bool created;	  /* zero.partial is this call's own */
};

/* Makes and locks `path`, and in it an empty zero.partial. Call tree_close in any case. */
int tree_create(struct tree *tree, const char *path, struct nvs_error *error);
/* Opens zero.partial, which another rank has made, or what is the checkpoint. Call tree_close in
 * any case. */
int tree_open(struct tree *tree, const char *path, bool partial, struct nvs_error *error);
/* Makes the directory of a parameter. A place is a path below that of the files. */
int tree_add(const struct tree *tree, const char *place, struct nvs_error *error);
/* Creates a file with room for `nbytes`. */
int tree_create_file(const struct tree *tree, const char *place, uint64_t nbytes,
		     struct nvs_error *error);
/* Opens a file with these flags of open(2): a descriptor, or a negative errno. */
int tree_open_file(const struct tree *tree, const char *place, int flags, struct nvs_error *error);
/* Makes a file durable, or the names in a directory. */
int tree_sync(const struct tree *tree, const char *place, struct nvs_error *error);
/* Gives the complete directory its name, and removes the one that had it. */
int tree_commit(struct tree *tree, struct nvs_error *error);
/* Closes the descriptors. Removes zero.partial if this call has made and not committed it. */
void tree_close(struct tree *tree);

/* ---- open_files.c ---- */

#define OPEN_FILES_MAX 32u

enum open_state { FILE_CLOSED, FILE_OPENING, FILE_OPEN };

struct open_file {
	struct open_files *files;
	size_t owner; /* the parameter */
	unsigned part, users;
	enum open_state state;
	bool apart;		 /* closed when it is released */
	uint64_t used;		 /* the higher, the later */
	struct sink sink;	 /* for writing */
	struct nvs_file *source; /* for reading */
};

struct open_files {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	struct nvs_aio *aio;
	const struct tree *tree;
	const struct params *params;
	int flags;		    /* of open(2) */
	const struct stamp *stamps; /* for reading: of the parts of parameter 0, 1 and so on */
	uint64_t clock;
	struct open_file all[OPEN_FILES_MAX];
};

/* Any thread may take and release files between open_files_begin and open_files_end. `stamps` NULL:
 * the files are this call's own. */
void open_files_begin(struct open_files *files, struct nvs_aio *aio, const struct tree *tree,
		      const struct params *params, int flags, const struct stamp *stamps);
/* The file of a part, which stays open at least until it is released. -ESTALE: it has another
 * stamp. */
int open_files_take(struct open_files *files, size_t owner, unsigned part, struct open_file **file,
		    struct nvs_error *error);
/* Releases the file of a transfer, if it has taken one. */
void open_files_release(struct state_move *move, struct state_io *io);
void open_files_end(struct open_files *files);

#endif
