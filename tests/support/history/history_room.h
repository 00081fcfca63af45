/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SUPPORT_HISTORY_HISTORY_ROOM_H
#define TESTS_SUPPORT_HISTORY_HISTORY_ROOM_H

#include "support/history/history.h"

/* Threads that wait for room in one pool. */
extern const struct history_model history_room;

#endif
