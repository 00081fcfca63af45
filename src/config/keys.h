/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the configuration as data: block, name, type, bounds, default, place in struct
 * nvs_config and meaning. The reader, the defaults, the error texts and (by a test)
 * docs/configuration.md all follow this table.
 */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nvswap.h"

enum config_block {
	BLOCK_ROOT,
	BLOCK_AIO,
	BLOCK_ZERO,
	BLOCK_PARAM,
	BLOCK_OPTIMIZER,
	BLOCK_FP16,
	BLOCK_BF16,
	BLOCK_DATA_TYPES,
	BLOCK_ADAM,
	BLOCK_ADAM_PARAMS,
	BLOCK_NVSWAP,
	BLOCK_COUNT
};

enum key_type {
	KEY_BLOCK,    /* another object, of block `child` */
	KEY_BOOL,     /* bool */
	KEY_U32,      /* uint32_t, a whole number */
	KEY_U64,      /* uint64_t, a whole number */
	KEY_REAL,     /* double */
	KEY_BETAS,    /* two double, beta1 and beta2 */
	KEY_DEVICE,   /* enum nvs_device */
	KEY_IOENGINE, /* enum nvs_ioengine */
	KEY_GRAD,     /* enum nvs_dtype, of grad_accum_dtype */
	KEY_NAME,     /* char[32] */
	KEY_PATHS,    /* of struct nvs_offload_config; the place is that of the block */
	KEY_UNUSED,   /* a key of DeepSpeed's that has no effect: a warning, with `meaning` */
};

/* Two keys of a block with the same place are two names of one setting. */
struct config_key {
	const char *name;
	const char *meaning; /* a phrase with the unit in it */
	enum config_block block, child;
	enum key_type type;
	uint32_t place;			/* offset in struct nvs_config */
	uint64_t min, max, multiple_of; /* of whole numbers; multiple_of 0: of anything */
	double real_min, real_max;	/* of real ones */
	uint64_t whole;			/* the default; of bool and enum too */
	double real, second;		/* the default; second: of beta2 */
	const char *default_text;	/* as JSON has it; NULL: it has none */
};

#define CONFIG_KEYS_MAX 96

extern const struct config_key config_keys[];
extern const unsigned config_key_count;

/* The block's name as messages show it: "zero_optimization.sub_group_size" has "zero_optimization".
 * "" for the whole file. */
const char *config_block_name(enum config_block block);
/* Whether unknown keys in it are errors (and "auto" is no value): the blocks that are nvswap's
 * business alone. In others DeepSpeed has more keys, which are left alone. */
bool config_block_is_strict(enum config_block block);

/* The key of that name in the block, or NULL. */
const struct config_key *config_key_find(enum config_block block, const char *name, size_t length);
/* What to say of a name that is not a key of the strict block: ", did you mean ...". */
const char *config_key_suggest(enum config_block block, const char *name, size_t length,
			       char text[256]);

/* The values that a key allows: "a whole number from 1 to 4096". */
const char *config_key_allows(const struct config_key *key, char text[160]);
/* Of grad_accum_dtype: that of parameters, which must be set. */
void config_key_set_default(const struct config_key *key, struct nvs_config *config);

#endif
