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
#include "config/keys.h"

/* What reading a configuration of `nbytes` takes of memory at most, beside what it keeps. */
#define CONFIG_BYTES(nbytes) (JSON_BYTES(nbytes) + 4 * (size_t)(nbytes))
#define CONFIG_TEXT_MAX	     ((size_t)64 << 20)	 /* maximum bytes of a file */
#define CONFIG_MEMORY_MAX    ((size_t)256 << 20) /* maximum bytes of the parsed document */
#define SHOWN_BYTES	     48			 /* bytes of a key or value quoted in a message */

struct reader {
	struct nvs_config
		config;	  /* a copy, which shares nvme_path with the caller unless new_paths */
	const char *file; /* for messages */
	struct nvs_error *error;
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
		const char *text);
/* Quotes text of the file: control characters become '?', and long text is cut. */
const char *reader_show(const char *bytes, size_t length, char shown[SHOWN_BYTES + 8]);
const char *reader_show_value(const struct json_value *value, char shown[SHOWN_BYTES + 8]);

/* ---- rules.c ---- */
/* Checks settings against each other; `before` is the configuration before this file. */
int rules_apply(struct reader *r, const struct nvs_config *before);
/* Computes the settings that depend on others. */
void config_derive(struct nvs_config *config);

/* ---- misplaced.c ---- */
/* Logs a warning of each block in the wrong place and each near miss of a block's name; where
 * `strict`, the first is -EINVAL. */
int misplaced_report(struct reader *r, const struct json_value *root, bool strict);

/* ---- reader.c ---- */
/* Reads "4k", "1M", "2G" or "50T": digits and a letter, in units of 1024. False: it is no such text. */
bool reader_with_suffix(const char *text, uint64_t *number);
/* Reads the document and applies the rules. 0, -EINVAL or -ENOMEM. */
int reader_read(struct reader *r, const struct json_value *root);
/* Sets one setting, called `name` in messages, and applies the rules. 0, -EINVAL or -ENOMEM. */
int reader_set(struct reader *r, const struct config_key *key, const struct json_value *value,
	       const char *name);
/* The same with a number, of a key that is a switch, a number or a numbered choice. */
int reader_set_number(struct reader *r, const struct config_key *key, uint64_t number,
		      const char *name);
/* Ends reading with `result`: 0 replaces the caller's `config` by the copy, an error drops the
 * copy. Returns `result`. */
int reader_take(struct reader *r, struct nvs_config *config, int result);

#endif
