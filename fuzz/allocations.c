/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what an input allocates: the linker redirects the fuzzer's calls of the target to here
 * (--wrap). Under a sanitizer its hooks count, otherwise an allocator in front of libc's.
 */
#include "allocations.h"

#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __has_feature
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

int __real_LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);
int __wrap_LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Of this thread, since the input came; what was allocated before and is freed now counts too. */
static _Thread_local bool counting;
static _Thread_local int64_t now, peak;

static void add(int64_t nbytes)
{
	if (!counting)
		return;
	now += nbytes;
	peak = now > peak ? now : peak;
}

#if SANITIZED
int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
					      void (*freed)(const volatile void *));
size_t __sanitizer_get_allocated_size(const volatile void *data);

static void allocated(const volatile void *data, size_t nbytes)
{
	(void)data;
	add((int64_t)nbytes);
}

static void freed(const volatile void *data)
{
	add(data ? -(int64_t)__sanitizer_get_allocated_size(data) : 0);
}
#else
void *__libc_malloc(size_t nbytes);
void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_realloc(void *data, size_t nbytes);
void __libc_free(void *data);

static void *count(void *data)
{
	add((int64_t)malloc_usable_size(data));
	return data;
}

void *malloc(size_t nbytes)
{
	return count(__libc_malloc(nbytes));
}

void *calloc(size_t n, size_t nbytes)
{
	return count(__libc_calloc(n, nbytes));
}

void *realloc(void *data, size_t nbytes)
{
	int64_t before = (int64_t)malloc_usable_size(data);
	void *moved = __libc_realloc(data, nbytes);

	/* It may have had both. */
	if (moved) {
		count(moved);
		add(-before);
	}
	return moved;
}

void free(void *data)
{
	add(-(int64_t)malloc_usable_size(data));
	__libc_free(data);
}
#endif

int __wrap_LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	int rc;

#if SANITIZED
	static bool hooked;

	if (!hooked)
		__sanitizer_install_malloc_and_free_hooks(allocated, freed);
	hooked = true;
#endif
	now = peak = 0;
	counting = true;
	rc = __real_LLVMFuzzerTestOneInput(data, nbytes);
	counting = false;
	if (peak <= (int64_t)allocated_most(nbytes))
		return rc;
	fprintf(stderr, "an input of %zu bytes takes %lld of memory, more than %zu\n", nbytes,
		(long long)peak, allocated_most(nbytes));
	abort();
}
