/* SPDX-License-Identifier: Apache-2.0 */
/* Small stacks for threads with little work, in any program. */
#ifndef THREADS_STACK_H
#define THREADS_STACK_H

#include <stddef.h>

/*
 * The stack size to pass to pthread_attr_setstacksize so that `nbytes` remain for the thread: the
 * thread-local data of the program and its libraries take the top of the stack.
 */
size_t stack_size(size_t nbytes);

#endif
