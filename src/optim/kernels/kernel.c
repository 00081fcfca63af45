/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that this processor supports. Compiled for the baseline instruction set, since it
 * runs before the check.
 */
#include "optim/kernels/kernel.h"

#include <assert.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

struct noise noise_of(uint64_t seed, uint64_t group, uint64_t step, uint64_t first)
{
	return (struct noise){noise_key(noise_key(seed, group), step), first};
}

#ifdef __x86_64__
/* These builtins also check that the operating system saves the wide registers. */
static bool has_avx2(void)
{
	unsigned eax, ebx, ecx, edx;

	return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
	       (ecx & bit_F16C);
}

static bool has_avx512(void)
{
	return __builtin_cpu_supports("avx512f") && has_avx2();
}
#else
#define has_avx2()   false
#define has_avx512() false
#endif

const struct kernel *kernel_at(unsigned i)
{
	if (kernel_avx512 && has_avx512() && !i--)
		return kernel_avx512;
	if (kernel_avx2 && has_avx2() && !i--)
		return kernel_avx2;
	return i ? NULL : kernel_plain;
}

const struct kernel *kernel_best(void)
{
	/* Asking the processor traps in a virtual machine, so it is asked once. */
	static const struct kernel *best;
	const struct kernel *kernel = __atomic_load_n(&best, __ATOMIC_RELAXED);

	if (!kernel) {
		kernel = kernel_at(0);
		assert(kernel);
		__atomic_store_n(&best, kernel, __ATOMIC_RELAXED);
	}
	return kernel;
}
