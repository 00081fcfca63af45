/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a JSON document to struct nvs_config: reader.c reads each value by the table of keys,
 * rules.c checks values against each other. Both change only a copy of the caller's configuration.
 *
 * The order of the files, from the bottom. Each calls only those before it (test_layers):
 *	keys: names keys paths
 *	reader: messages rules misplaced reader
 *	calls: config set
 */
#ifndef CONFIG_READER_H
#define CONFIG_READER_H

#include "base/json/read.h"
#include "config/config.h"

/* ---- keys.c: the keys as data, to which a test holds docs/configuration.md ---- */

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

/* Where the setting is stored. */
static inline void *config_key_at(const struct nvs_config *in, const struct config_key *key)
{
	return (char *)(uintptr_t)in + key->place;
}

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
/* The setting of a switch, a whole number or a choice as a number, and back. */
uint64_t config_key_whole(const struct config_key *key, const struct nvs_config *config);
void config_key_set_whole(const struct config_key *key, struct nvs_config *config, uint64_t whole);
/* The default of grad_accum_dtype is param_dtype, which must be set. */
void config_key_set_default(const struct config_key *key, struct nvs_config *config);

/* ---- reader.c ---- */

/* What reading a configuration of `nbytes` takes of memory at most, beside what it keeps. */
#define CONFIG_BYTES(nbytes) (JSON_BYTES(nbytes) + 4 * (size_t)(nbytes))
#define CONFIG_TEXT_MAX	     ((size_t)64 << 20)	 /* maximum bytes of a file */
#define CONFIG_MEMORY_MAX    ((size_t)256 << 20) /* maximum bytes of the parsed document */
#define SHOWN_BYTES	     48			 /* bytes of a key or value quoted in a message */
#define NAME_BYTES	     128 /* bytes of "zero_optimization.offload_optimizer.<key>" */

struct reader {
	struct nvs_config *caller; /* the caller's, as it was before this file or setting */
	struct nvs_config config;  /* a copy, which shares nvme_path with it unless new_paths */
	const char *file;	   /* for messages */
	struct nvs_error *error;
	const struct config_key *key; /* the setting that is read, and its name in messages */
	char name[NAME_BYTES];
	const struct json_value *seen[CONFIG_KEYS_MAX]; /* by index in config_keys */
	const struct json_value *blocks[BLOCK_COUNT];
	bool new_paths[2]; /* by enum nvs_block */
	bool from_call;	   /* called from nvs_config_set: messages have no file and place */
	bool grad_named;   /* the file sets grad_accum_dtype to a type rather than "auto" */
};

/* ---- paths.c: lists of nvme_path, from a file or from the caller ---- */
#define PATH_BYTES_MAX 3840 /* leaves room below PATH_MAX for the names inside the store */

/* Checks paths[i] by itself and against those before it. Returns NULL if it is valid, else the flaw
 * as a predicate: "is empty". */
const char *path_flaw(const char *const *paths, unsigned i);

/* Copies n strings into a block, whose own are not freed. Returns 0, or -ENOMEM and copies none. */
int paths_copy(struct offload_config *into, const char *const *paths, unsigned n);
void paths_free(struct offload_config *offload);

/* ---- messages.c ---- */
/* Sets the error to file, place (unless NULL) and text; returns -EINVAL. */
int reader_complain(struct reader *r, const struct json_place *place, const char *subject,
		    const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Logs a message about the place. */
void reader_say(struct reader *r, enum nvs_log_level level, const struct json_place *place,
		const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Quotes text of the file: control characters become '?', and long text is cut. */
const char *reader_show(const char *bytes, size_t length, char shown[SHOWN_BYTES + 8]);
const char *reader_show_value(const struct json_value *value, char shown[SHOWN_BYTES + 8]);

/* ---- rules.c ---- */
/* Checks settings against each other. */
int rules_apply(struct reader *r);
/* Computes the settings that depend on others. */
void config_derive(struct nvs_config *config);

/* ---- misplaced.c ---- */
/* Logs a warning of each block in the wrong place and each near miss of a block's name; if the
 * configuration is strict, the first is -EINVAL. */
int misplaced_report(struct reader *r, const struct json_value *root);

/* ---- reader.c ---- */
/*
 * Reads the document, or the one setting `key`, and applies the rules: 0, and the copy replaces the
 * caller's configuration; -EINVAL or -ENOMEM, and it is dropped.
 */
int reader_read(struct reader *r, const struct json_value *root);
int reader_set(struct reader *r, const struct json_value *value);

#endif
