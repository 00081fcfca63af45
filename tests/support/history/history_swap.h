/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_SWAP_H
#define TESTS_SUPPORT_HISTORY_HISTORY_SWAP_H

#include "support/history/history.h"

/* All calls of the swap engine. */
extern const struct history_model history_swap;
/* The same with a deliberate mistake in the model, at a tensor's second change. */
extern const struct history_model history_swap_mistaken;

#endif
