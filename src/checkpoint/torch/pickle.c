/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine that a pickle is a program for: a stack of values, marks in it, and a memo of values
 * by number. Each operation makes at most one value, so the pickle's length bounds them.
 */
#include "checkpoint/torch/pickle.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/little_endian.h"
#include "base/memory/array.h"

#define MEMORY_MAX  ((size_t)2 << 30)
#define BLOCK_BYTES ((size_t)64 << 10)
#define NAME_BYTES  256u

#define UNREAD_FORM "it is sparse, quantized, nested, of a subclass, or without data"

/* Operations, by the names of Python's pickletools. */
enum operation {
	MARK = '(',
	STOP = '.',
	BINBYTES = 'B',
	SHORT_BINBYTES = 'C',
	BINFLOAT = 'G',
	BININT = 'J',
	BININT1 = 'K',
	BININT2 = 'M',
	NONE = 'N',
	BINPERSID = 'Q',
	REDUCE = 'R',
	BINSTRING = 'T',
	SHORT_BINSTRING = 'U',
	BINUNICODE = 'X',
	EMPTY_LIST = ']',
	APPEND = 'a',
	BUILD = 'b',
	GLOBAL = 'c',
	APPENDS = 'e',
	BINGET = 'h',
	LONG_BINGET = 'j',
	BINPUT = 'q',
	LONG_BINPUT = 'r',
	SETITEM = 's',
	TUPLE = 't',
	SETITEMS = 'u',
	EMPTY_TUPLE = ')',
	EMPTY_DICT = '}',
	PROTO = 0x80,
	NEWOBJ = 0x81,
	TUPLE1 = 0x85,
	TUPLE2 = 0x86,
	TUPLE3 = 0x87,
	NEWTRUE = 0x88,
	NEWFALSE = 0x89,
	LONG1 = 0x8a,
	LONG4 = 0x8b,
	SHORT_BINUNICODE = 0x8c,
	BINUNICODE8 = 0x8d,
	BINBYTES8 = 0x8e,
	EMPTY_SET = 0x8f,
	ADDITEMS = 0x90,
	FROZENSET = 0x91,
	STACK_GLOBAL = 0x93,
	MEMOIZE = 0x94,
	FRAME = 0x95,
	BYTEARRAY8 = 0x96,
};

/* Memory for objects and their items. */
struct object_block {
	struct object_block *next;
	size_t used, room;
	_Alignas(16) char bytes[];
};

struct machine {
	struct pickle *pickle;
	const uint8_t *begin, *at, *end;
	struct object **stack, **memo;
	size_t depth, stack_room, nmemo, memo_room;
	size_t *marks, nmarks, marks_room; /* depths of the stack */
	const char *path;
	struct nvs_error *error;
};

static int reject(const struct machine *machine, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int reject(const struct machine *machine, const char *format, ...)
{
	char text[sizeof(machine->error->text)];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return error_set(machine->error, -EINVAL, "%s: its pickle, byte %zu: %s", machine->path,
			 (size_t)(machine->at - machine->begin), text);
}

static int no_memory(const struct machine *machine)
{
	return error_set(machine->error, -ENOMEM, "no memory for the pickle of %s", machine->path);
}

/* ---- Memory ---- */

static void *take_memory(struct pickle *pickle, size_t nbytes)
{
	struct object_block *block = pickle->blocks;
	size_t whole = (nbytes + 15) & ~(size_t)15;
	void *taken;

	if (!block || block->room - block->used < whole) {
		size_t room = whole > BLOCK_BYTES ? whole : BLOCK_BYTES;

		if (room > MEMORY_MAX - pickle->memory)
			return NULL;
		block = calloc(1, sizeof(*block) + room);
		if (!block)
			return NULL;
		block->room = room;
		block->next = pickle->blocks;
		pickle->blocks = block;
		pickle->memory += room;
	}
	taken = block->bytes + block->used;
	block->used += whole;
	return taken;
}

void pickle_free(struct pickle *pickle)
{
	while (pickle->blocks) {
		struct object_block *next = pickle->blocks->next;

		free(pickle->blocks);
		pickle->blocks = next;
	}
	*pickle = (struct pickle){0};
}

static bool append(struct pickle *pickle, struct object *list, struct object *item)
{
	if (list->n == list->room) {
		size_t room = list->room ? 2 * list->room : 4;
		struct object **items = take_memory(pickle, room * sizeof(struct object *));

		if (!items)
			return false;
		if (list->n)
			memcpy(items, list->items, list->n * sizeof(struct object *));
		list->items = items;
		list->room = room;
	}
	list->items[list->n++] = item;
	return true;
}

/* ---- The stack ---- */

static int push_object(struct machine *machine, struct object *object)
{
	struct object **stack = array_room(machine->stack, machine->depth, &machine->stack_room,
					   sizeof(*stack));

	if (stack)
		machine->stack = stack;
	if (!stack || !object)
		return no_memory(machine);
	machine->stack[machine->depth++] = object;
	return 0;
}

static int push_copy(struct machine *machine, const struct object *object)
{
	struct object *copy = take_memory(machine->pickle, sizeof(*copy));

	if (copy)
		*copy = *object;
	return push_object(machine, copy);
}

/* Values above the last mark. */
static size_t above_mark(const struct machine *machine)
{
	return machine->depth - (machine->nmarks ? machine->marks[machine->nmarks - 1] : 0);
}

/* NULL: there is none above the last mark. */
static struct object *pop_object(struct machine *machine)
{
	return above_mark(machine) ? machine->stack[--machine->depth] : NULL;
}

static struct object *top(const struct machine *machine)
{
	return above_mark(machine) ? machine->stack[machine->depth - 1] : NULL;
}

static int push_mark(struct machine *machine)
{
	size_t *marks = array_room(machine->marks, machine->nmarks, &machine->marks_room,
				   sizeof(*marks));

	if (!marks)
		return no_memory(machine);
	machine->marks = marks;
	machine->marks[machine->nmarks++] = machine->depth;
	return 0;
}

/* Removes what lies above the last mark, and the mark; false: there is none. */
static bool pop_mark(struct machine *machine, struct object ***items, size_t *n)
{
	if (!machine->nmarks)
		return false;
	*n = above_mark(machine);
	machine->depth = machine->marks[--machine->nmarks];
	*items = machine->stack + machine->depth;
	return true;
}

/* ---- Operands ---- */

/* `n` bytes of the pickle; NULL: it ends before. */
static const uint8_t *operand(struct machine *machine, size_t n)
{
	const uint8_t *at = machine->at;

	assert(at <= machine->end);
	if ((size_t)(machine->end - at) < n)
		return NULL;
	machine->at += n;
	return at;
}

static int ends_early(const struct machine *machine)
{
	return reject(machine, "it ends in the middle");
}

/* A number of 1 to 8 bytes, without sign. */
static bool number_operand(struct machine *machine, unsigned nbytes, uint64_t *number)
{
	const uint8_t *at = operand(machine, nbytes);

	*number = 0;
	for (unsigned i = 0; at && i < nbytes; i++)
		*number |= (uint64_t)at[i] << (8 * i);
	return at;
}

static int push_int(struct machine *machine, int64_t number)
{
	return push_copy(machine, &(const struct object){.kind = OBJECT_INT, .number = number});
}

static int do_int(struct machine *machine, unsigned nbytes)
{
	uint64_t number;

	if (!number_operand(machine, nbytes, &number))
		return ends_early(machine);
	/* Only the one of four bytes has a sign. */
	return push_int(machine, nbytes == 4 ? (int32_t)(uint32_t)number : (int64_t)number);
}

static int do_long(struct machine *machine, unsigned length_bytes)
{
	uint64_t length, number = 0;
	const uint8_t *at;

	if (!number_operand(machine, length_bytes, &length) || !(at = operand(machine, length)))
		return ends_early(machine);
	if (length > 8)
		return push_copy(machine, &(const struct object){.kind = OBJECT_LONG});
	for (size_t i = 0; i < length; i++)
		number |= (uint64_t)at[i] << (8 * i);
	if (length && length < 8 && at[length - 1] & 0x80)
		number |= ~UINT64_C(0) << (8 * length);
	return push_int(machine, (int64_t)number);
}

/* A double, big-endian. */
static int do_float(struct machine *machine)
{
	struct object object = {.kind = OBJECT_FLOAT};
	const uint8_t *at = operand(machine, 8);
	uint64_t bits;

	if (!at)
		return ends_early(machine);
	memcpy(&bits, at, sizeof(bits));
	bits = be64toh(bits);
	memcpy(&object.real, &bits, sizeof(bits));
	return push_copy(machine, &object);
}

static int do_string(struct machine *machine, unsigned length_bytes)
{
	struct object object = {.kind = OBJECT_STRING};
	const uint8_t *at;
	uint64_t length;
	char *text;

	if (!number_operand(machine, length_bytes, &length) || !(at = operand(machine, length)))
		return ends_early(machine);
	text = take_memory(machine->pickle, length + 1);
	if (!text)
		return no_memory(machine);
	memcpy(text, at, length);
	object.text = text;
	object.length = length;
	return push_copy(machine, &object);
}

static int do_constant(struct machine *machine, enum object_kind kind, bool truth)
{
	return push_copy(machine, &(const struct object){.kind = kind, .truth = truth});
}

/* ---- Names ---- */

static int push_name(struct machine *machine, const char *module, size_t module_bytes,
		     const char *name, size_t name_bytes)
{
	struct object object = {.kind = OBJECT_NAME};
	char text[NAME_BYTES];
	int n = snprintf(text, sizeof(text), "%.*s.%.*s", (int)module_bytes, module,
			 (int)name_bytes, name);

	if (n >= 0 && (size_t)n == module_bytes + name_bytes + 1)
		object.name = pickle_name_find(text);
	if (!object.name)
		return reject(machine,
			      "it names %s, which is not among what a checkpoint may have; nothing "
			      "of it was executed",
			      text);
	return push_copy(machine, &object);
}

/* Two lines of text: the module and the name. */
static int do_global(struct machine *machine)
{
	const char *lines[2];
	size_t lengths[2];

	for (int i = 0; i < 2; i++) {
		const uint8_t *begin = machine->at;
		const uint8_t *newline = memchr(begin, '\n', (size_t)(machine->end - begin));

		if (!newline)
			return ends_early(machine);
		lengths[i] = (size_t)(newline - begin);
		if (lengths[i] >= NAME_BYTES)
			return reject(machine, "a name of %zu bytes", lengths[i]);
		lines[i] = (const char *)begin;
		machine->at = newline + 1;
	}
	return push_name(machine, lines[0], lengths[0], lines[1], lengths[1]);
}

static int do_stack_global(struct machine *machine)
{
	const struct object *name = pop_object(machine), *module = pop_object(machine);

	if (!name || !module || name->kind != OBJECT_STRING || module->kind != OBJECT_STRING ||
	    name->length >= NAME_BYTES || module->length >= NAME_BYTES)
		return reject(machine, "a name that is no string");
	return push_name(machine, module->text, module->length, name->text, name->length);
}

/* ---- Lists and dictionaries ---- */

static int push_items(struct machine *machine, enum object_kind kind, struct object *const *items,
		      size_t n)
{
	struct object *object = take_memory(machine->pickle, sizeof(*object));

	if (!object)
		return no_memory(machine);
	*object = (struct object){.kind = kind};
	object->items = n ? take_memory(machine->pickle, n * sizeof(*items)) : NULL;
	if (n && !object->items)
		return no_memory(machine);
	if (n)
		memcpy(object->items, items, n * sizeof(*items));
	object->n = object->room = n;
	return push_object(machine, object);
}

static int do_tuple(struct machine *machine, size_t n)
{
	if (above_mark(machine) < n)
		return reject(machine, "a tuple of values that are missing");
	machine->depth -= n;
	return push_items(machine, OBJECT_TUPLE, machine->stack + machine->depth, n);
}

/* Adds values to the list, or keys and values to the dictionary, that is on top. */
static int add_to_top(struct machine *machine, enum object_kind kind, struct object *const *items,
		      size_t n)
{
	struct object *to = top(machine);

	if (!to || to->kind != kind || (kind == OBJECT_DICT && n % 2))
		return reject(machine, "values without a %s",
			      kind == OBJECT_DICT ? "dictionary" : "list");
	for (size_t i = 0; i < n; i++)
		if (!append(machine->pickle, to, items[i]))
			return no_memory(machine);
	return 0;
}

static int do_add(struct machine *machine, enum object_kind kind, size_t n)
{
	if (above_mark(machine) < n)
		return reject(machine, "values that are missing");
	machine->depth -= n;
	return add_to_top(machine, kind, machine->stack + machine->depth, n);
}

/* ---- Sets: their values are of no use here ---- */

static int push_set(struct machine *machine)
{
	return push_copy(
		machine,
		&(const struct object){.kind = OBJECT_INSTANCE,
				       .instance = {pickle_name_find("builtins.set"), NULL, NULL}});
}

/* ---- Calls ---- */

static bool is_count(const struct object *object, uint64_t *count)
{
	if (object->kind != OBJECT_INT || object->number < 0)
		return false;
	*count = (uint64_t)object->number;
	return true;
}

static bool are_counts(const struct object *tuple)
{
	uint64_t count;

	if (tuple->kind != OBJECT_TUPLE)
		return false;
	for (size_t i = 0; i < tuple->n; i++)
		if (!is_count(tuple->items[i], &count))
			return false;
	return true;
}

/* ("storage", type, key, location, numel) */
static int do_storage(struct machine *machine)
{
	struct object object = {.kind = OBJECT_STORAGE};
	const struct object *id = pop_object(machine), *const * items;

	if (!id || id->kind != OBJECT_TUPLE || id->n != 5)
		return reject(machine, "a reference that is no storage");
	items = (const struct object *const *)id->items;
	if (items[0]->kind != OBJECT_STRING || strcmp(items[0]->text, "storage") != 0 ||
	    items[1]->kind != OBJECT_NAME || items[1]->name->use != NAME_STORAGE ||
	    items[2]->kind != OBJECT_STRING || strlen(items[2]->text) != items[2]->length ||
	    !is_count(items[4], &object.storage.numel))
		return reject(machine, "a reference that is no storage");
	object.storage.type = items[1]->name;
	object.storage.key = items[2]->text;
	return push_copy(machine, &object);
}

static int push_unread_tensor(struct machine *machine, const char *why)
{
	return push_copy(machine,
			 &(const struct object){.kind = OBJECT_TENSOR, .tensor.unread = why});
}

/* (storage, offset, shape, stride, ...); version 3 has the dtype as seventh, and an untyped
 * storage. */
static int make_tensor(struct machine *machine, const struct object *arguments)
{
	struct object object = {.kind = OBJECT_TENSOR};

	const struct object *const *items = (const struct object *const *)arguments->items;

	const struct pickle_name *type;

	if (arguments->n < 4 || items[0]->kind != OBJECT_STORAGE ||
	    !is_count(items[1], &object.tensor.offset) || !are_counts(items[2]) ||
	    !are_counts(items[3]) || items[2]->n != items[3]->n)
		return reject(machine, "a tensor with wrong arguments");
	object.tensor.storage = items[0];
	object.tensor.shape = items[2];
	object.tensor.stride = items[3];
	type = items[0]->storage.type;
	if (arguments->n > 6 && items[6]->kind == OBJECT_NAME)
		type = items[6]->name;
	if (!type->has_dtype)
		return push_unread_tensor(machine, "nvswap has no type for its elements");
	object.tensor.dtype = type->dtype;
	/* The last argument may be a dictionary with the negative and the conjugate bit. */
	for (size_t i = 6; i < arguments->n; i++)
		if (items[i]->kind == OBJECT_DICT && items[i]->n)
			return push_unread_tensor(machine,
						  "it is a negated or conjugated view: save its "
						  "resolve_neg() or resolve_conj()");
	return push_copy(machine, &object);
}

/* (tensor, ...) */
static int make_parameter(struct machine *machine, const struct object *arguments)
{
	if (!arguments->n || arguments->items[0]->kind != OBJECT_TENSOR)
		return reject(machine, "a parameter that is no tensor");
	return push_object(machine, arguments->items[0]);
}

/* (function, type, its arguments, attributes): a tensor with attributes, which are left out. */
static int make_from_type(struct machine *machine, const struct object *arguments)
{
	struct object *const *items = arguments->items;

	if (arguments->n < 3 || items[0]->kind != OBJECT_NAME || items[2]->kind != OBJECT_TUPLE)
		return reject(machine, "a tensor with wrong arguments");
	switch (items[0]->name->use) {
	case NAME_TENSOR:
		return make_tensor(machine, items[2]);
	case NAME_UNREAD:
		return push_unread_tensor(machine, UNREAD_FORM);
	case NAME_PARAMETER:
		return make_parameter(machine, items[2]);
	default:
		return reject(machine, "a tensor that %s makes", items[0]->name->text);
	}
}

static int do_call(struct machine *machine)
{
	struct object *arguments = pop_object(machine), *callee = pop_object(machine), *first;

	if (!arguments || !callee || arguments->kind != OBJECT_TUPLE || callee->kind != OBJECT_NAME)
		return reject(machine, "a call without a function or its arguments");
	first = arguments->n ? arguments->items[0] : NULL;
	switch (callee->name->use) {
	case NAME_TENSOR:
		return make_tensor(machine, arguments);
	case NAME_UNREAD:
		return push_unread_tensor(machine, UNREAD_FORM);
	case NAME_PARAMETER:
		return make_parameter(machine, arguments);
	case NAME_FROM_TYPE:
		return make_from_type(machine, arguments);
	case NAME_DICT:
		return push_items(machine, OBJECT_DICT, NULL, 0);
	case NAME_TUPLE:
		if (!first || (first->kind != OBJECT_TUPLE && first->kind != OBJECT_LIST))
			return reject(machine, "a shape that is no tuple");
		return push_object(machine, first);
	case NAME_INSTANCE:
		return push_copy(machine, &(const struct object){
						  .kind = OBJECT_INSTANCE,
						  .instance = {callee->name, arguments, NULL}});
	case NAME_CONSTANT:
	case NAME_STORAGE:
		break;
	}
	return reject(machine, "a call of %s, which is no function", callee->name->text);
}

/* The state of an object. That of a dictionary is of no use here. */
static int do_build(struct machine *machine)
{
	struct object *state = pop_object(machine), *to = top(machine);

	if (!state || !to || (to->kind != OBJECT_INSTANCE && to->kind != OBJECT_DICT))
		return reject(machine, "a state of what has none");
	if (to->kind == OBJECT_INSTANCE)
		to->instance.state = state;
	return 0;
}

/* ---- The memo ---- */

/* Numbers come in order, so that the pickle's length bounds the memo. */
static int memorize(struct machine *machine, uint64_t number)
{
	struct object *object = top(machine);
	struct object **memo;

	if (!object || number > machine->nmemo)
		return reject(machine, "value %llu of the memo before others",
			      (unsigned long long)number);
	memo = array_room(machine->memo, machine->nmemo, &machine->memo_room, sizeof(*memo));
	if (!memo)
		return no_memory(machine);
	machine->memo = memo;
	if (number == machine->nmemo)
		machine->nmemo++;
	assert(number < machine->nmemo && machine->nmemo <= machine->memo_room);
	machine->memo[number] = object;
	return 0;
}

/* ---- Operations ---- */

/* Operations on the values above the last mark. */
static int do_marked(struct machine *machine, enum operation operation)
{
	struct object **items;
	size_t n;

	if (!pop_mark(machine, &items, &n))
		return reject(machine, "values without a mark");
	switch (operation) {
	case TUPLE:
		return push_items(machine, OBJECT_TUPLE, items, n);
	case APPENDS:
		return add_to_top(machine, OBJECT_LIST, items, n);
	case SETITEMS:
		return add_to_top(machine, OBJECT_DICT, items, n);
	case FROZENSET:
		return push_set(machine);
	default:
		assert(operation == ADDITEMS);
		return top(machine) && top(machine)->kind == OBJECT_INSTANCE
			       ? 0
			       : reject(machine, "values without a set");
	}
}

/* Operations with a number of `nbytes` bytes as operand. */
static int do_numbered(struct machine *machine, enum operation operation, unsigned nbytes)
{
	uint64_t number;

	if (!number_operand(machine, nbytes, &number))
		return ends_early(machine);
	switch (operation) {
	case PROTO:
		return number >= 2 && number <= 5
			       ? 0
			       : reject(machine, "protocol %u; read are 2 to 5", (unsigned)number);
	case FRAME: /* its length is of no use here */
		return 0;
	case BINPUT:
	case LONG_BINPUT:
		return memorize(machine, number);
	default:
		assert(operation == BINGET || operation == LONG_BINGET);
		return number < machine->nmemo ? push_object(machine, machine->memo[number])
					       : reject(machine, "no value %llu in the memo",
							(unsigned long long)number);
	}
}

static int do_operation(struct machine *machine, enum operation operation)
{
	switch (operation) {
	case PROTO:
	case BINPUT:
	case BINGET:
		return do_numbered(machine, operation, 1);
	case LONG_BINPUT:
	case LONG_BINGET:
		return do_numbered(machine, operation, 4);
	case FRAME:
		return do_numbered(machine, operation, 8);
	case MEMOIZE:
		return memorize(machine, machine->nmemo);

	case NONE:
		return do_constant(machine, OBJECT_NONE, false);
	case NEWTRUE:
		return do_constant(machine, OBJECT_BOOL, true);
	case NEWFALSE:
		return do_constant(machine, OBJECT_BOOL, false);
	case BININT1:
		return do_int(machine, 1);
	case BININT2:
		return do_int(machine, 2);
	case BININT:
		return do_int(machine, 4);
	case LONG1:
		return do_long(machine, 1);
	case LONG4:
		return do_long(machine, 4);
	case BINFLOAT:
		return do_float(machine);
	case SHORT_BINUNICODE:
	case SHORT_BINBYTES:
	case SHORT_BINSTRING:
		return do_string(machine, 1);
	case BINUNICODE:
	case BINBYTES:
	case BINSTRING:
		return do_string(machine, 4);
	case BINUNICODE8:
	case BINBYTES8:
	case BYTEARRAY8:
		return do_string(machine, 8);

	case EMPTY_TUPLE:
		return push_items(machine, OBJECT_TUPLE, NULL, 0);
	case EMPTY_LIST:
		return push_items(machine, OBJECT_LIST, NULL, 0);
	case EMPTY_DICT:
		return push_items(machine, OBJECT_DICT, NULL, 0);
	case EMPTY_SET:
		return push_set(machine);
	case TUPLE1:
		return do_tuple(machine, 1);
	case TUPLE2:
		return do_tuple(machine, 2);
	case TUPLE3:
		return do_tuple(machine, 3);
	case APPEND:
		return do_add(machine, OBJECT_LIST, 1);
	case SETITEM:
		return do_add(machine, OBJECT_DICT, 2);
	case MARK:
		return push_mark(machine);
	case TUPLE:
	case APPENDS:
	case SETITEMS:
	case ADDITEMS:
	case FROZENSET:
		return do_marked(machine, operation);

	case GLOBAL:
		return do_global(machine);
	case STACK_GLOBAL:
		return do_stack_global(machine);
	case BINPERSID:
		return do_storage(machine);
	case REDUCE:
	case NEWOBJ: /* a class in place of a function */
		return do_call(machine);
	case BUILD:
		return do_build(machine);
	case STOP: /* ends run_pickle() */
		break;
	}
	return reject(machine, "operation 0x%02x, which torch.save does not write", operation);
}

static int run_pickle(struct machine *machine)
{
	int rc = 0;

	while (!rc) {
		const uint8_t *byte = operand(machine, 1);
		enum operation operation;

		if (!byte)
			return ends_early(machine);
		operation = *byte;
		if (operation == STOP)
			break;
		rc = do_operation(machine, operation);
	}
	if (rc)
		return rc;
	machine->pickle->root = pop_object(machine);
	if (!machine->pickle->root || machine->depth || machine->nmarks)
		return reject(machine, "it ends with %zu values, not one", machine->depth);
	return 0;
}

int pickle_read(struct pickle *pickle, const uint8_t *bytes, size_t nbytes, const char *path,
		struct nvs_error *error)
{
	struct machine machine = {.pickle = pickle,
				  .begin = bytes,
				  .at = bytes,
				  .end = bytes + nbytes,
				  .path = path,
				  .error = error};
	int rc;

	*pickle = (struct pickle){.nbytes = nbytes};
	/* Allocated at once, so that a pointer to 0 of its values is not NULL. */
	machine.stack = array_room(NULL, 0, &machine.stack_room, sizeof(*machine.stack));
	if (!machine.stack)
		return no_memory(&machine);
	rc = run_pickle(&machine);
	free(machine.stack);
	free(machine.memo);
	free(machine.marks);
	assert(rc || pickle->root);
	return rc;
}
