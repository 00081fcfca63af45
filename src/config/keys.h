/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the configuration as data: block, name, type, bounds, default, offset in struct
 * nvs_config and meaning. The reader, the defaults and the error messages use this table; a test
 * holds docs/configuration.md to it.
 */
#ifndef CONFIG_KEYS_H
#define CONFIG_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/config.h"

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
	KEY_BLOCK,  /* another object: the block `child` */
	KEY_BOOL,   /* bool */
	KEY_VERIFY, /* enum verify, as true or false */
	KEY_U32,    /* uint32_t, a whole number */
	KEY_U64,    /* uint64_t, a whole number */
	KEY_REAL,   /* double */
	KEY_BETAS,  /* two double, beta1 and beta2 */
	KEY_CHOICE, /* an enumeration with the names of `choices` */
	KEY_NAME,   /* char[32] */
	KEY_PATHS,  /* nvme_path of the struct offload_config at the offset */
	KEY_UNUSED, /* a DeepSpeed key without effect: logs a warning with `meaning` */
};

/* The names of an enumeration in the file, by value. Nothing else lists them. */
struct config_choices {
	const char *const *names; /* NULL: the file can't say that value */
	unsigned n;
	bool numbered; /* the enumeration is public: nvs_config_set_number takes its values */
};

/* Keys of a block with the same offset are aliases of one setting. */
struct config_key {
	const char *name;
	const char *meaning; /* a phrase that names the unit */
	enum config_block block, child;
	enum key_type type;
	const struct config_choices *choices;
	uint32_t place;			/* offset in struct nvs_config */
	uint64_t min, max, multiple_of; /* of whole numbers; multiple_of 0: any */
	bool suffix;			/* the file may give it as a string like "50T" */
	double real_max;		/* of real numbers */
	uint64_t whole;			/* default of a whole number, bool or enum */
	double real, second;		/* default of a real number; second: of beta2 */
	const char *default_text;	/* as written in JSON; NULL: none */
};

#define CONFIG_KEYS_MAX 112

extern const struct config_key config_keys[];
extern const unsigned config_key_count;
extern const struct config_choices config_ioengines, config_devices; /* names.c */

extern const struct block_traits {
	const char *name; /* in messages, such as "zero_optimization"; "" for the top of the file */
	/* It refuses unknown keys. The others also hold keys that only DeepSpeed reads, so unknown
	 * keys there are ignored. */
	bool strict;
	bool takes_auto; /* the value "auto" is the default, as in DeepSpeed */
	/* DeepSpeed reads it by a model of pydantic, which also takes "16" as a number and "yes" as
	 * true. */
	bool is_model;
} config_blocks[BLOCK_COUNT];

/* Returns NULL if the block has no such key. */
const struct config_key *config_key_find(enum config_block block, const char *name, size_t length);
/* Where a name that is not a key of the block belongs, as "it is a key of `aio`"; NULL: nowhere. */
const char *config_key_home(enum config_block block, const char *name, size_t length,
			    char text[256]);
/* Advice on a name that is not a key of the strict block: "did you mean ...". */
const char *config_key_suggest(enum config_block block, const char *name, size_t length,
			       char text[256]);

/* NULL: there is no such value. */
const char *config_choice_name(const struct config_choices *choices, uint64_t value);

/* Describes the allowed values: "a whole number from 1 to 4096". */
const char *config_key_allows(const struct config_key *key, char text[160]);
/* The default of grad_accum_dtype is param_dtype, which must be set. */
void config_key_set_default(const struct config_key *key, struct nvs_config *config);

#endif
