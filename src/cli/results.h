/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON results of `nvswap bench` or fio, which may come from anywhere: numbers that are negative,
 * infinite or no numbers are refused, with their places.
 */
#ifndef CLI_RESULTS_H
#define CLI_RESULTS_H

#include "base/json/read.h"
#include "nvswap.h"

struct results {
	const struct json_value *jobs; /* a list that is not empty; it lies in these: */
	char *text;
	struct json_document *document;
};

/* Reads a file. Skips lines around the document: fio's warnings, output in other formats. After an
 * error *results must be freed as well. */
int results_read(struct results *results, const char *path, struct nvs_error *error);
void results_free(struct results *results);
/* A member of a job; 0 if missing, or after the first bad value, which is the error. */
double result_number(const struct json_value *from, const char *member, const char *path,
		     struct nvs_error *error);
/* -EINVAL: the value at this place of the file is not what it must be. */
int result_refuse(struct nvs_error *error, const char *path, const struct json_value *at,
		  const char *what);
/* 0, or -EINVAL: the job has failed. */
int result_check(const struct json_value *job, const char *path, struct nvs_error *error);

#endif
