/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a JSON document to struct nvs_config: reader.c reads each value by the table of keys,
 * rules.c has what must hold between them. Both work on a copy; the caller's configuration is
 * theirs to read and no more.
 */
#ifndef CONFIG_READER_H
#define CONFIG_READER_H

#include "config/json.h"
#include "config/keys.h"

struct reader {
	struct nvs_config config; /* the copy; its nvme_path are the caller's unless new_paths */
	const char *file;	  /* for messages */
	struct nvs_error *error;
	const struct json_value *seen[CONFIG_KEYS_MAX]; /* by index in config_keys */
	const struct json_value *blocks[BLOCK_COUNT];
	bool new_param_paths, new_optimizer_paths;
	bool grad_named; /* grad_accum_dtype was, and not as "auto" */
};

/* Reads the whole document, then applies the rules. -EINVAL, -ENOMEM. */
int reader_read(struct reader *r, const struct json_value *root);

/* Sets the error with file and place (NULL: of none) before the text; returns -EINVAL. */
int reader_complain(struct reader *r, const struct json_place *place, const char *subject,
		    const char *format, ...) __attribute__((format(printf, 4, 5)));

/* What must hold between settings; `was` is the parameters' type before this file. */
int rules_apply(struct reader *r, enum nvs_dtype was);

/* Settings that follow from others. */
void config_derive(struct nvs_config *config);

#endif
