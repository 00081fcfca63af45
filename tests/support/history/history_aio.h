/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_AIO_H
#define TESTS_SUPPORT_HISTORY_HISTORY_AIO_H

#include "support/history/history.h"

/* All calls on files and requests of an aio. */
extern const struct history_model history_aio;

#endif
