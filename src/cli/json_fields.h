/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of the JSON that commands write, by what they hold: text of any bytes, counts of all 64
 * bits, numbers of fio's form and exact ones.
 */
#ifndef CLI_JSON_FIELDS_H
#define CLI_JSON_FIELDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <yajl/yajl_gen.h>

/*
 * Writes to the file as it goes, indented; the caller's to free, NULL without memory. What could
 * not be written is the file's error, to be found by output_close.
 */
yajl_gen json_to(FILE *file);

/* A path need not be UTF-8, and JSON must: what is not becomes ASCII with ? in it. */
void put_text(yajl_gen gen, const char *text);
/* In the fewest digits that read back as the same; null where JSON has no number for it. */
void put_exact(yajl_gen gen, double value);

void text_field(yajl_gen gen, const char *key, const char *text);
void count_field(yajl_gen gen, const char *key, uint64_t count);
void real_field(yajl_gen gen, const char *key, double value); /* six decimals, as fio's */
void exact_field(yajl_gen gen, const char *key, double value);
void bool_field(yajl_gen gen, const char *key, bool value);
/* Without a key in an array, or as the whole. */
void open_map(yajl_gen gen, const char *key);
void open_array(yajl_gen gen, const char *key);

#endif
