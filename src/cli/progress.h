/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bar with rate and time left, on standard error where that is a terminal, else nothing.
 */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdint.h>

/* Begins a phase of `total` units (bytes, or time), with a name that stays valid. */
void progress_begin(const char *phase, uint64_t total);
/* `done` of the total; `bytes` moved so far in this phase. Draws at most ten times a second. */
void progress_update(uint64_t done, uint64_t bytes);
void progress_end(void);
/* What takes a bar that is on the line off it: "" where there is none. Any thread. */
const char *progress_erase(void);

#endif
