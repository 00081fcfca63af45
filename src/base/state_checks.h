/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of whole states cost as much as the work between them. They are compiled into the library
 * that the tests link and into builds with a sanitizer; the installed library has the other
 * assertions alone.
 */
#ifndef BASE_STATE_CHECKS_H
#define BASE_STATE_CHECKS_H

#ifndef STATE_CHECKS
#define STATE_CHECKS 0
#endif

#endif
