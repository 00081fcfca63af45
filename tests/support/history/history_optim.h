/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_OPTIM_H
#define TESTS_SUPPORT_HISTORY_HISTORY_OPTIM_H

#include "support/history/history.h"

/* All calls of the optimizer, with an update function of the test. */
extern const struct history_model history_optim;

#endif
