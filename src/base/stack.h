/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small stacks for threads that do little, whatever program they are threads of.
 */
#ifndef BASE_STACK_H
#define BASE_STACK_H

#include <stddef.h>

/*
 * The stack size to ask of pthread_attr_setstacksize so that `nbytes` are left to the thread: the
 * thread-local data of the program and its libraries lie in it too, at the top.
 */
size_t stack_size(size_t nbytes);

#endif
