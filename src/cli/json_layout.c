/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the events of yajl's parser, which stands behind a token when it tells of it; a token begins
 * at the first byte behind the one before that is no white space, comma or colon. Relies on what
 * nvs_config_parse has found good: it looks for no errors of its own.
 */
#include "json_layout.h"

#include <errno.h>
#include <string.h>
#include <yajl/yajl_parse.h>

struct scan {
	yajl_handle yajl;
	const char *text;
	size_t nbytes, end; /* of the last token */
	unsigned depth;
	struct json_layout *layout;
	/* Of the two outer levels: the object whose members come there; NULL: none of interest */
	struct json_object *open[2];
	int key[2]; /* index of the member's key there; -1: none that is looked for */
};

static size_t token_begins(const struct scan *scan)
{
	size_t at = scan->end;

	while (at < scan->nbytes && strchr(" \t\r\n,:", scan->text[at]))
		at++;
	return at;
}

static void token_ends(struct scan *scan)
{
	scan->end = yajl_get_bytes_consumed(scan->yajl);
}

static struct json_object *here(const struct scan *scan)
{
	return scan->depth && scan->depth <= 2 ? scan->open[scan->depth - 1] : NULL;
}

static void value_begins(struct scan *scan)
{
	struct json_object *object = here(scan);

	if (object)
		object->last_value.at = token_begins(scan);
}

static int value_ends(struct scan *scan)
{
	struct json_object *object = here(scan);

	if (!object)
		return 1;
	object->last_value.end = scan->end;
	if (scan->key[scan->depth - 1] >= 0)
		object->values[scan->key[scan->depth - 1]] = object->last_value;
	return 1;
}

static int on_scalar(struct scan *scan)
{
	value_begins(scan);
	token_ends(scan);
	return value_ends(scan);
}

static int on_null(void *arg)
{
	return on_scalar(arg);
}

static int on_boolean(void *arg, int truth)
{
	(void)truth;
	return on_scalar(arg);
}

static int on_string(void *arg, const unsigned char *string, size_t length)
{
	(void)string;
	(void)length;
	return on_scalar(arg);
}

/* The parser has looked beyond a number to know where it ends. */
static int on_number(void *arg, const char *digits, size_t length)
{
	struct scan *scan = arg;

	(void)digits;
	value_begins(scan);
	scan->end = token_begins(scan) + length;
	return value_ends(scan);
}

static int on_key(void *arg, const unsigned char *string, size_t length)
{
	struct scan *scan = arg;
	struct json_object *object = here(scan);
	size_t at = token_begins(scan);

	token_ends(scan);
	if (!object)
		return 1;
	object->members++;
	object->last_key = (struct json_span){at, scan->end};
	scan->key[scan->depth - 1] = -1;
	for (int i = 0; object->keys[i]; i++)
		if (strlen(object->keys[i]) == length && !memcmp(object->keys[i], string, length))
			scan->key[scan->depth - 1] = i;
	return 1;
}

static int container_opens(struct scan *scan, struct json_object *object)
{
	size_t at = token_begins(scan);

	value_begins(scan);
	token_ends(scan);
	if (object)
		object->text.at = at;
	if (scan->depth < 2)
		scan->open[scan->depth] = object;
	scan->depth++;
	return 1;
}

static int on_start_map(void *arg)
{
	struct scan *scan = arg;
	struct json_object *object = NULL;

	if (!scan->depth)
		object = &scan->layout->root;
	else if (scan->depth == 1 && here(scan) && scan->key[0] >= 0)
		object = &scan->layout->blocks[scan->key[0]];
	return container_opens(scan, object);
}

static int on_start_array(void *arg)
{
	return container_opens(arg, NULL);
}

static int on_end(void *arg)
{
	struct scan *scan = arg;
	struct json_object *object = here(scan);

	token_ends(scan);
	if (object)
		object->text.end = scan->end;
	scan->depth--;
	return value_ends(scan);
}

static const yajl_callbacks events = {
	.yajl_null = on_null,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_start_map = on_start_map,
	.yajl_map_key = on_key,
	.yajl_end_map = on_end,
	.yajl_start_array = on_start_array,
	.yajl_end_array = on_end,
};

int json_layout(struct json_layout *layout, const char *text, size_t nbytes)
{
	struct scan scan = {.text = text, .nbytes = nbytes, .layout = layout};
	yajl_status status;

	scan.yajl = yajl_alloc(&events, NULL, &scan);
	if (!scan.yajl)
		return -ENOMEM;
	status = yajl_parse(scan.yajl, (const unsigned char *)text, nbytes);
	if (status == yajl_status_ok)
		status = yajl_complete_parse(scan.yajl);
	yajl_free(scan.yajl);
	return status == yajl_status_ok && layout->root.text.end ? 0 : -EINVAL;
}
