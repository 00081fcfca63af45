/* SPDX-License-Identifier: Apache-2.0 */
/* The name that a person meant, for errors about unknown keys, options and names. */
#ifndef BASE_NEAREST_H
#define BASE_NEAREST_H

/* The name that a mistyped `text` most likely means; NULL: none is near. */
const char *nearest_name(const char *text, const char *const *names, unsigned n);

#endif
