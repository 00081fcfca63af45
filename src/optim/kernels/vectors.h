/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What vectors of all sets do by the operators of their types. The including file has defined LANES
 * and two types of so many elements: vec of fp32, and ints of uint32_t.
 */
#include <stdint.h>
#include <string.h>

/* Makes the compiler specialize the function for each caller's constants. */
#define SPECIALISED static inline __attribute__((always_inline))

/* The same bits as the other type. */
SPECIALISED ints as_ints(vec x)
{
	ints bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

SPECIALISED vec as_vec(ints bits)
{
	vec x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* All lanes the same; -0 stays -0. */
SPECIALISED vec splat(float x)
{
	return x - (vec){0};
}

SPECIALISED ints every(uint32_t x)
{
	return x + (ints){0};
}

/* LANES elements at any address. */
SPECIALISED ints load_u32(const void *from)
{
	ints x;

	memcpy(&x, from, sizeof(x));
	return x;
}

SPECIALISED void store_u32(void *to, ints x)
{
	memcpy(to, &x, sizeof(x));
}

SPECIALISED vec load_f32(const void *from)
{
	return as_vec(load_u32(from));
}

SPECIALISED void store_f32(void *to, vec x)
{
	store_u32(to, as_ints(x));
}
