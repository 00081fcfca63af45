/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian numbers at any address, for structures on the drive. */
#ifndef BASE_LITTLE_ENDIAN_H
#define BASE_LITTLE_ENDIAN_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put_u32(uint8_t *at, uint32_t value)
{
	value = htole32(value);
	memcpy(at, &value, sizeof(value));
}

static inline void put_u64(uint8_t *at, uint64_t value)
{
	value = htole64(value);
	memcpy(at, &value, sizeof(value));
}

static inline uint32_t get_u32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return le32toh(value);
}

static inline uint64_t get_u64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return le64toh(value);
}

/* A double as the 64 bits of IEEE 754. */
static inline void put_f64(uint8_t *at, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	put_u64(at, bits);
}

static inline double get_f64(const uint8_t *at)
{
	uint64_t bits = get_u64(at);
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

#endif
