/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine that a pickle is a program for: a stack of values, marks in it, and a memo of values
 * by number. Each operation makes at most one value, so the pickle's length bounds them.
 */
#include "checkpoint/torch/pickle.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
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

/* Operations, by the names of Python's pickletools. Only those in forms[] are read. */
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

#define REJECT(machine, format, ...)                                                               \
	error_set((machine)->error, -EINVAL, "%s: its pickle, byte %zu: " format, (machine)->path, \
		  (size_t)((machine)->at - (machine)->begin), ##__VA_ARGS__)

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

static int push_items(struct machine *machine, enum object_kind kind, struct object *const *items,
		      size_t n)
{
	struct object made = {.kind = kind};

	if (n) {
		made.items = take_memory(machine->pickle, n * sizeof(*items));
		if (!made.items)
			return no_memory(machine);
		memcpy(made.items, items, n * sizeof(*items));
		made.n = made.room = n;
	}
	return push_copy(machine, &made);
}

static size_t above_mark(const struct machine *machine)
{
	return machine->depth - (machine->nmarks ? machine->marks[machine->nmarks - 1] : 0);
}

/* NULL: there is none above the last mark. */
static struct object *top(const struct machine *machine)
{
	return above_mark(machine) ? machine->stack[machine->depth - 1] : NULL;
}

/* Adds values to the list, or keys and values to the dictionary, that is on top. */
static int add_to_top(struct machine *machine, enum object_kind kind, struct object *const *items,
		      size_t n)
{
	struct object *to = top(machine);

	if (!to || to->kind != kind || (kind == OBJECT_DICT && n % 2))
		return REJECT(machine, "values without a %s",
			      kind == OBJECT_DICT ? "dictionary" : "list");
	for (size_t i = 0; i < n; i++) {
		if (to->n == to->room) {
			size_t room = to->room ? 2 * to->room : 4;
			struct object **grown = take_memory(machine->pickle, room * sizeof(*grown));

			if (!grown)
				return no_memory(machine);
			if (to->n)
				memcpy(grown, to->items, to->n * sizeof(*grown));
			to->items = grown;
			to->room = room;
		}
		to->items[to->n++] = items[i];
	}
	return 0;
}

/* Numbers come in order, so that the pickle's length bounds the memo. */
static int memorize(struct machine *machine, uint64_t number)
{
	struct object *object = top(machine);
	struct object **memo;

	if (!object || number > machine->nmemo)
		return REJECT(machine, "value %llu of the memo before others",
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

/* ---- Names and calls ---- */

static int push_name(struct machine *machine, const char *module, size_t module_bytes,
		     const char *name, size_t name_bytes)
{
	struct object object = {.kind = OBJECT_NAME};
	char text[NAME_BYTES];
	int n;

	if (module_bytes >= NAME_BYTES || name_bytes >= NAME_BYTES)
		return REJECT(machine, "a name of %zu bytes", module_bytes + name_bytes);
	n = snprintf(text, sizeof(text), "%.*s.%.*s", (int)module_bytes, module, (int)name_bytes,
		     name);
	if (n >= 0 && (size_t)n == module_bytes + name_bytes + 1)
		object.name = pickle_name_find(text);
	if (!object.name)
		return REJECT(machine,
			      "it names %s, which is not among what a checkpoint may have; nothing "
			      "of it was executed",
			      text);
	return push_copy(machine, &object);
}

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
static int push_storage(struct machine *machine, const struct object *id)
{
	struct object object = {.kind = OBJECT_STORAGE};
	const struct object *const *items = (const struct object *const *)id->items;

	if (id->kind != OBJECT_TUPLE || id->n != 5 || items[0]->kind != OBJECT_STRING ||
	    strcmp(items[0]->text, "storage") != 0 || items[1]->kind != OBJECT_NAME ||
	    items[1]->name->use != NAME_STORAGE || items[2]->kind != OBJECT_STRING ||
	    strlen(items[2]->text) != items[2]->length ||
	    !is_count(items[4], &object.storage.numel))
		return REJECT(machine, "a reference that is no storage");
	object.storage.type = items[1]->name;
	object.storage.key = items[2]->text;
	return push_copy(machine, &object);
}

/* (storage, offset, shape, stride, ...); version 3 has the dtype as seventh, and an untyped
 * storage. */
static int push_tensor(struct machine *machine, const struct object *arguments)
{
	struct object object = {.kind = OBJECT_TENSOR};
	const struct object *const *items = (const struct object *const *)arguments->items;
	const struct pickle_name *type;

	if (arguments->n < 4 || items[0]->kind != OBJECT_STORAGE ||
	    !is_count(items[1], &object.tensor.offset) || !are_counts(items[2]) ||
	    !are_counts(items[3]) || items[2]->n != items[3]->n)
		return REJECT(machine, "a tensor with wrong arguments");
	object.tensor.storage = items[0];
	object.tensor.shape = items[2];
	object.tensor.stride = items[3];
	type = items[0]->storage.type;
	if (arguments->n > 6 && items[6]->kind == OBJECT_NAME)
		type = items[6]->name;
	object.tensor.dtype = type->dtype;
	/* The last argument may be a dictionary with the negative and the conjugate bit. */
	for (size_t i = 6; i < arguments->n; i++)
		if (items[i]->kind == OBJECT_DICT && items[i]->n)
			object.tensor.unread = "it is a negated or conjugated view: save its "
					       "resolve_neg() or resolve_conj()";
	if (!type->has_dtype)
		object.tensor.unread = "nvswap has no type for its elements";
	return push_copy(machine, &object);
}

static int call_name(struct machine *machine, const struct pickle_name *name,
		     struct object *arguments)
{
	enum name_use use = name->use;
	struct object *const *items = arguments->items;

	/* (function, type, its arguments, attributes): a tensor; attributes are left out. */
	if (use == NAME_FROM_TYPE) {
		if (arguments->n < 3 || items[0]->kind != OBJECT_NAME ||
		    items[2]->kind != OBJECT_TUPLE)
			return REJECT(machine, "a tensor with wrong arguments");
		name = items[0]->name;
		use = name->use;
		if (use != NAME_TENSOR && use != NAME_UNREAD && use != NAME_PARAMETER)
			return REJECT(machine, "a tensor that %s makes", name->text);
		arguments = items[2];
		items = arguments->items;
	}
	switch (use) {
	case NAME_TENSOR:
		return push_tensor(machine, arguments);
	case NAME_UNREAD:
		return push_copy(machine, &(const struct object){.kind = OBJECT_TENSOR,
								 .tensor.unread = UNREAD_FORM});
	case NAME_PARAMETER: /* (tensor, ...) */
		if (!arguments->n || items[0]->kind != OBJECT_TENSOR)
			return REJECT(machine, "a parameter that is no tensor");
		return push_object(machine, items[0]);
	case NAME_DICT:
		return push_items(machine, OBJECT_DICT, NULL, 0);
	case NAME_TUPLE:
		if (!arguments->n ||
		    (items[0]->kind != OBJECT_TUPLE && items[0]->kind != OBJECT_LIST))
			return REJECT(machine, "a shape that is no tuple");
		return push_object(machine, items[0]);
	case NAME_INSTANCE:
		return push_copy(machine,
				 &(const struct object){.kind = OBJECT_INSTANCE,
							.instance = {name, arguments, NULL}});
	case NAME_FROM_TYPE:
	case NAME_CONSTANT:
	case NAME_STORAGE:
		break;
	}
	return REJECT(machine, "a call of %s, which is no function", name->text);
}

/* ---- Operations ---- */

#define TO_MARK 255 /* takes the values above the last mark, and the mark */

/* What an operation has behind it, and takes from the stack. */
static const struct {
	uint8_t number_bytes; /* of a number without sign behind it */
	bool counts;	      /* the number counts bytes that follow */
	uint8_t values;
} forms[256] = {
	[PROTO] = {.number_bytes = 1},
	[FRAME] = {.number_bytes = 8},
	[BINPUT] = {.number_bytes = 1},
	[LONG_BINPUT] = {.number_bytes = 4},
	[BINGET] = {.number_bytes = 1},
	[LONG_BINGET] = {.number_bytes = 4},
	[BININT1] = {.number_bytes = 1},
	[BININT2] = {.number_bytes = 2},
	[BININT] = {.number_bytes = 4},
	[BINFLOAT] = {.number_bytes = 8},
	[LONG1] = {1, .counts = true},
	[LONG4] = {4, .counts = true},
	[SHORT_BINUNICODE] = {1, .counts = true},
	[BINUNICODE] = {4, .counts = true},
	[SHORT_BINBYTES] = {1, .counts = true},
	[BINBYTES] = {4, .counts = true},
	[SHORT_BINSTRING] = {1, .counts = true},
	[BINSTRING] = {4, .counts = true},
	[BINUNICODE8] = {8, .counts = true},
	[BINBYTES8] = {8, .counts = true},
	[BYTEARRAY8] = {8, .counts = true},
	[TUPLE] = {.values = TO_MARK},
	[APPENDS] = {.values = TO_MARK},
	[SETITEMS] = {.values = TO_MARK},
	[ADDITEMS] = {.values = TO_MARK},
	[FROZENSET] = {.values = TO_MARK},
	[TUPLE1] = {.values = 1},
	[TUPLE2] = {.values = 2},
	[TUPLE3] = {.values = 3},
	[APPEND] = {.values = 1},
	[SETITEM] = {.values = 2},
	[STACK_GLOBAL] = {.values = 2},
	[BINPERSID] = {.values = 1},
	[REDUCE] = {.values = 2},
	[NEWOBJ] = {.values = 2},
	[BUILD] = {.values = 1},
	[STOP] = {.values = 1},
};

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

static uint64_t number_at(const uint8_t *at, size_t nbytes)
{
	uint64_t number = 0;

	for (size_t i = 0; i < nbytes; i++)
		number |= (uint64_t)at[i] << (8 * i);
	return number;
}

/* A line of text; NULL: the pickle ends before. */
static const char *line_operand(struct machine *machine, size_t *nbytes)
{
	const uint8_t *at = machine->at;
	const uint8_t *newline = memchr(at, '\n', (size_t)(machine->end - at));

	if (!newline)
		return NULL;
	machine->at = newline + 1;
	*nbytes = (size_t)(newline - at);
	return (const char *)at;
}

/* One operation; STOP sets the pickle's root. */
static int do_operation(struct machine *machine)
{
	const uint8_t *at = operand(machine, 1), *bytes;
	struct object made = {0}, **items, *to;
	enum operation operation;
	size_t n, lengths[2];
	const char *lines[2];
	uint64_t number;

	if (!at)
		return REJECT(machine, "it ends in the middle");
	operation = *at;
	at = operand(machine, forms[operation].number_bytes);
	if (!at)
		return REJECT(machine, "it ends in the middle");
	number = number_at(at, forms[operation].number_bytes);
	bytes = operand(machine, forms[operation].counts ? number : 0);
	if (!bytes)
		return REJECT(machine, "it ends in the middle");
	n = forms[operation].values;
	if (n == TO_MARK) {
		if (!machine->nmarks)
			return REJECT(machine, "values without a mark");
		n = above_mark(machine);
		machine->nmarks--;
	} else if (above_mark(machine) < n) {
		return REJECT(machine, "values that are missing");
	}
	machine->depth -= n;
	items = machine->stack + machine->depth;
	to = top(machine);

	switch (operation) {
	case PROTO:
		return number >= 2 && number <= 5
			       ? 0
			       : REJECT(machine, "protocol %u; read are 2 to 5", (unsigned)number);
	case FRAME: /* its length is of no use here */
		return 0;
	case BINPUT:
	case LONG_BINPUT:
		return memorize(machine, number);
	case MEMOIZE:
		return memorize(machine, machine->nmemo);
	case BINGET:
	case LONG_BINGET:
		return number < machine->nmemo ? push_object(machine, machine->memo[number])
					       : REJECT(machine, "no value %llu in the memo",
							(unsigned long long)number);

	case NONE:
		made.kind = OBJECT_NONE;
		break;
	case NEWTRUE:
	case NEWFALSE:
		made.kind = OBJECT_BOOL;
		made.truth = operation == NEWTRUE;
		break;
	case BININT1:
	case BININT2:
	case BININT: /* the only one with a sign */
		made.kind = OBJECT_INT;
		made.number = operation == BININT ? (int32_t)(uint32_t)number : (int64_t)number;
		break;
	case LONG1:
	case LONG4:
		made.kind = number > 8 ? OBJECT_LONG : OBJECT_INT;
		if (number > 8)
			break;
		made.number = (int64_t)number_at(bytes, number);
		if (number && number < 8 && bytes[number - 1] & 0x80)
			made.number |= (int64_t)(~UINT64_C(0) << (8 * number));
		break;
	case BINFLOAT: /* a double, big-endian */
		number = __builtin_bswap64(number);
		made.kind = OBJECT_FLOAT;
		memcpy(&made.real, &number, sizeof(number));
		break;
	case SHORT_BINUNICODE:
	case SHORT_BINBYTES:
	case SHORT_BINSTRING:
	case BINUNICODE:
	case BINBYTES:
	case BINSTRING:
	case BINUNICODE8:
	case BINBYTES8:
	case BYTEARRAY8: {
		char *text = take_memory(machine->pickle, number + 1);

		if (!text)
			return no_memory(machine);
		made.kind = OBJECT_STRING;
		made.length = number;
		made.text = memcpy(text, bytes, number);
		break;
	}

	case EMPTY_TUPLE:
	case TUPLE:
	case TUPLE1:
	case TUPLE2:
	case TUPLE3:
		return push_items(machine, OBJECT_TUPLE, items, n);
	case EMPTY_LIST:
		made.kind = OBJECT_LIST;
		break;
	case EMPTY_DICT:
		made.kind = OBJECT_DICT;
		break;
	case MARK: {
		size_t *marks = array_room(machine->marks, machine->nmarks, &machine->marks_room,
					   sizeof(*marks));

		if (!marks)
			return no_memory(machine);
		machine->marks = marks;
		machine->marks[machine->nmarks++] = machine->depth;
		return 0;
	}
	case APPEND:
	case APPENDS:
		return add_to_top(machine, OBJECT_LIST, items, n);
	case SETITEM:
	case SETITEMS:
		return add_to_top(machine, OBJECT_DICT, items, n);
	case EMPTY_SET: /* the values of sets are of no use here */
	case FROZENSET:
		made.kind = OBJECT_INSTANCE;
		made.instance.type = pickle_name_find("builtins.set");
		break;
	case ADDITEMS:
		return to && to->kind == OBJECT_INSTANCE ? 0
							 : REJECT(machine, "values without a set");

	case GLOBAL:
		for (int i = 0; i < 2; i++) {
			lines[i] = line_operand(machine, &lengths[i]);
			if (!lines[i])
				return REJECT(machine, "it ends in the middle");
		}
		return push_name(machine, lines[0], lengths[0], lines[1], lengths[1]);
	case STACK_GLOBAL:
		if (items[0]->kind != OBJECT_STRING || items[1]->kind != OBJECT_STRING)
			return REJECT(machine, "a name that is no string");
		return push_name(machine, items[0]->text, items[0]->length, items[1]->text,
				 items[1]->length);
	case BINPERSID:
		return push_storage(machine, items[0]);
	case REDUCE:
	case NEWOBJ: /* a class in place of a function */
		if (items[0]->kind != OBJECT_NAME || items[1]->kind != OBJECT_TUPLE)
			return REJECT(machine, "a call without a function or its arguments");
		return call_name(machine, items[0]->name, items[1]);
	case BUILD: /* the state of an object; that of a dictionary is of no use here */
		if (!to || (to->kind != OBJECT_INSTANCE && to->kind != OBJECT_DICT))
			return REJECT(machine, "a state of what has none");
		if (to->kind == OBJECT_INSTANCE)
			to->instance.state = items[0];
		return 0;
	case STOP:
		if (machine->depth || machine->nmarks)
			return REJECT(machine, "it ends with %zu values, not one",
				      machine->depth + 1);
		machine->pickle->root = items[0];
		return 0;
	default:
		return REJECT(machine, "operation 0x%02x, which torch.save does not write",
			      operation);
	}
	return push_copy(machine, &made);
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
	int rc = 0;

	*pickle = (struct pickle){.nbytes = nbytes};
	/* Allocated at once, so that a pointer to 0 of its values is not NULL. */
	machine.stack = array_room(NULL, 0, &machine.stack_room, sizeof(*machine.stack));
	if (!machine.stack)
		return no_memory(&machine);
	while (!rc && !pickle->root)
		rc = do_operation(&machine);
	free(machine.stack);
	free(machine.memo);
	free(machine.marks);
	return rc;
}
