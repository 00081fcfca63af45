/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of one JSON document: counted against a limit, freed all at once, and left by longjmp
 * to `exhausted` where there is none, for libyajl uses what its malloc returns without a look.
 */
#ifndef CONFIG_JSON_MEMORY_H
#define CONFIG_JSON_MEMORY_H

#include <setjmp.h>
#include <stddef.h>

struct json_memory {
	struct json_memory_block *blocks;
	size_t used, max; /* bytes, with what it takes to keep count */
	char *room;	  /* what is left to carve from */
	size_t room_nbytes;
	jmp_buf exhausted; /* set by the owner before anything is taken */
};

void json_memory_open(struct json_memory *memory, size_t max);
void json_memory_close(struct json_memory *memory);

/* malloc, realloc and free, in the shape of yajl_alloc_funcs: `context` is a struct json_memory. */
void *json_memory_alloc(void *context, size_t nbytes);
void *json_memory_resize(void *context, void *data, size_t nbytes);
void json_memory_release(void *context, void *data);

/* Small pieces that live as long as the document. */
void *json_memory_carve(struct json_memory *memory, size_t nbytes);

#endif
