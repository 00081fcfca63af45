/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is told of a tuning, in the words that its table and its JSON share.
 */
#ifndef CLI_TUNE_WORDS_H
#define CLI_TUNE_WORDS_H

#include "tune.h"

/* "dropped", "slower", "tie", "chosen", "map". */
const char *tune_fate_name(const struct tune_trial *trial);
const char *tune_objective_name(enum tune_objective objective);
/* Whether the choice is another engine than auto takes, and so has to be named. */
bool tune_names_ioengine(const struct tune_result *result);
/* All in one object; 0 or STATUS_FAILED. */
int tune_json(FILE *file, const struct tune_result *result);

#endif
