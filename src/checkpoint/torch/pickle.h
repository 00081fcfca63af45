/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the pickles of torch.save into a tree of values. Nothing is executed: a name in the pickle
 * is one of a table (pickle_names.c), which says what becomes of it, or an error that names it. The
 * pickle may be damaged or hostile; values may contain themselves.
 */
#ifndef CHECKPOINT_PICKLE_H
#define CHECKPOINT_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

enum object_kind {
	OBJECT_NONE,
	OBJECT_BOOL,
	OBJECT_INT,
	OBJECT_LONG, /* a whole number that 64 bits with sign do not hold; its value is not kept */
	OBJECT_FLOAT,
	OBJECT_STRING,
	OBJECT_LIST,
	OBJECT_TUPLE,
	OBJECT_DICT, /* keys and values in turn */
	OBJECT_NAME, /* a class, function or constant */
	OBJECT_STORAGE,
	OBJECT_TENSOR,
	OBJECT_INSTANCE, /* of a class that the table permits: the arguments it was made with */
};

/* What becomes of a name when it is called. */
enum name_use {
	NAME_CONSTANT, /* it is not called */
	NAME_STORAGE,  /* the type of a storage; not called either */
	NAME_TENSOR,
	NAME_PARAMETER,
	NAME_UNREAD,	/* makes a tensor that is not stored as one run of elements */
	NAME_FROM_TYPE, /* calls one of those three */
	NAME_DICT,
	NAME_TUPLE,
	NAME_INSTANCE,
};

struct pickle_name {
	const char *text; /* module and name with a dot between them */
	enum name_use use;
	enum nvs_dtype dtype; /* of a storage; or the constant is this dtype of torch */
	bool has_dtype;	      /* false: nvswap has no such type */
};

struct object {
	enum object_kind kind;
	union {
		bool truth;
		int64_t number;
		double real;
		struct {
			const char
				*text; /* UTF-8 as it stands in the pickle, and a NUL behind it */
			size_t length;
		};
		struct {
			struct object **items;
			size_t n, room;
		};
		const struct pickle_name *name;
		struct {
			const char *key; /* of the record with the data */
			const struct pickle_name *type;
			uint64_t numel;
		} storage;
		struct {
			const struct object *storage;
			enum nvs_dtype dtype;
			uint64_t offset; /* in elements */
			const struct object *shape, *stride;
			const char *unread; /* why it can't be read; or NULL */
		} tensor;
		struct {
			const struct pickle_name *type;
			struct object *arguments, *state; /* NULL: none */
		} instance;
	};
};

struct pickle {
	struct object *root;
	struct object_block *blocks; /* memory of all objects */
	size_t memory;
	size_t nbytes; /* of the pickle */
};

/*
 * Reads a pickle of protocol 2 to 5. Call pickle_free in any case. `path` stands for it in errors.
 * -EINVAL: it is damaged, or has what torch.save does not write, or names what is not permitted;
 * -ENOMEM.
 */
int pickle_read(struct pickle *pickle, const uint8_t *bytes, size_t nbytes, const char *path,
		struct nvs_error *error);
void pickle_free(struct pickle *pickle);

/* ---- pickle_names.c ---- */

/* NULL: it is not permitted. */
const struct pickle_name *pickle_name_find(const char *text);
/* The first name of that use for a type; NULL: it has none. */
const char *pickle_name_of(enum name_use use, enum nvs_dtype dtype);

#endif
