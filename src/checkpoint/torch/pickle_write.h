/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the values of a pickle, one after the other, as torch.save does. A dictionary is "}(", its
 * keys and values in turn, and "u"; a list is "](", its values, and "e". Errors are those of the
 * stream, when it is closed.
 */
#ifndef CHECKPOINT_PICKLE_WRITE_H
#define CHECKPOINT_PICKLE_WRITE_H

#include <stdio.h>

#include "checkpoint/checkpoint.h"

void pickle_begin(FILE *out);
void pickle_end(FILE *out);
void pickle_text(FILE *out, const char *text);
void pickle_number(FILE *out, uint64_t number);
/* A tensor of which record `index` of the zip has the data. */
void pickle_tensor(FILE *out, const struct entry *entry, size_t index);

/* The lowest `nbytes` bytes of a number, the lowest first, as zips and pickles have them. */
void put_number(FILE *out, uint64_t number, unsigned nbytes);

#endif
