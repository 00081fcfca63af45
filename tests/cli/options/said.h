/* SPDX-License-Identifier: Apache-2.0 */
/* What the command writes to standard error in a test. */
#ifndef TESTS_CLI_OPTIONS_SAID_H
#define TESTS_CLI_OPTIONS_SAID_H

#include "support/support.h"

static char said[8192];

/* Evaluates the call with standard error in `said`. */
#define HEARD(call)                                                                                \
	({                                                                                         \
		FILE *heard_terminal = stderr;                                                     \
		memset(said, 0, sizeof(said));                                                     \
		stderr = fmemopen(said, sizeof(said), "w");                                        \
		assert_non_null(stderr);                                                           \
		int heard_rc = (call);                                                             \
		fclose(stderr);                                                                    \
		stderr = heard_terminal;                                                           \
		heard_rc;                                                                          \
	})

#endif
