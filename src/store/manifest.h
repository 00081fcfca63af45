/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest of a kept store: its tensors by name, as bytes and as entries. Nothing that is read
 * is used before all of it was checked.
 */
#ifndef STORE_MANIFEST_H
#define STORE_MANIFEST_H

#include <assert.h>

#include "base/numbers.h"
#include "store/label.h"
#include "store/store.h"

#define MANIFEST_HEADER_BYTES	128u
#define MANIFEST_BYTES_MAX	(UINT64_C(1) << 32)
#define MANIFEST_ENTRY_MAX	1080u /* bytes of one entry, at most */
#define MANIFEST_GENERATION_MAX (UINT64_MAX - 1)

struct manifest_header {
	uint8_t id[STORE_ID_SIZE];
	uint64_t generation, count, body_bytes, body_checksum, note_bytes;
	uint64_t made;	 /* seconds since 1970; 0: unknown */
	uint32_t writer; /* version of the library, one byte each: 0x000200 is 0.2.0 */
	bool committed;	 /* the label names it durably; false also in those of older versions */
};

struct manifest {
	struct manifest_header header;
	uint8_t *body; /* holds the names, and behind the entries the note */
	struct store_entry *entries;
	uint64_t *shapes; /* those of the entries, one behind the other */
	uint64_t end;	  /* bytes; where the last extent ends */
};

/* The size of the encoded manifest. `note` may be NULL. */
uint64_t manifest_bytes(const struct store_entry *entries, size_t n, const struct store_note *note);
/* The encoded manifest, to be freed by the caller. `note` may be NULL. NULL: out of memory. */
uint8_t *manifest_encode(const uint8_t id[STORE_ID_SIZE], uint64_t generation,
			 const struct store_entry *entries, size_t n, const struct store_note *note,
			 struct manifest_header *header);
/* Writes the header's bytes; they are those that were decoded. */
void manifest_encode_header(const struct manifest_header *header,
			    uint8_t bytes[MANIFEST_HEADER_BYTES]);

/* -EUCLEAN: not a manifest's header, or damaged. */
int manifest_decode_header(const uint8_t bytes[MANIFEST_HEADER_BYTES],
			   struct manifest_header *header);
/*
 * Decodes the entries of manifest->body, for a store of that unit. -EUCLEAN: the body is damaged or
 * inconsistent; *why says how. -ENOMEM. After an error call manifest_free.
 */
int manifest_decode_body(struct manifest *manifest, uint32_t unit, const char **why);
/* Asserts what must hold of an entry, but for the bounds of the store. */
void entry_check(const struct store_entry *entry, uint32_t unit);
/* Asserts what must hold of a header that was made here, or decoded. */
void manifest_header_check(const struct manifest_header *header);
/* Asserts what must hold of a manifest whose body was decoded, and of an empty one. */
void manifest_check(const struct manifest *manifest);
/* The note, in the body. */
struct store_note manifest_note(const struct manifest *manifest);
void manifest_free(struct manifest *manifest);

/* The bytes that a note takes: it is padded like an entry. */
static inline uint64_t note_room(uint64_t nbytes)
{
	assert(nbytes <= NVS_NOTE_MAX);
	return (nbytes + 7) & ~(uint64_t)7;
}

#endif
