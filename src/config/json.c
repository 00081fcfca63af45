/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds the document from the events of libyajl's parser. An event begins at the first byte after
 * the last one that is not white space, a comma or a colon, which gives its line and column. All
 * memory, the parser's too, comes from json_memory.c, which leaves by longjmp when there is none:
 * yajl does not look at what malloc returned.
 */
#include "config/json.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

#include "base/error.h"
#include "config/json_memory.h"

struct json_document {
	struct json_memory memory;
	struct json_value *root;
};

struct parser {
	struct json_document *document;
	yajl_handle yajl;
	const char *text;
	size_t nbytes;
	size_t end;	/* of the last token */
	bool finishing; /* the text was handed over whole; its last number may still come */
	size_t at;	/* the byte that `place` is the place of; it only moves on */
	struct json_place place;

	const char *key; /* of the value to come */
	size_t key_length;
	struct json_place key_place;

	unsigned depth;
	struct {
		struct json_value *container;
		struct json_value **tail;
	} open[JSON_DEPTH_MAX];

	const char *refused; /* why a callback cancelled, at `place`; or NULL */
	int refused_code;
};

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* What the grammar, which yajl checks, puts between a token and the next. */
static bool is_separator(char c)
{
	return c == ',' || c == ':';
}

static struct json_place move_to(struct parser *p, size_t at)
{
	assert(at >= p->at && at <= p->nbytes);
	for (; p->at < at; p->at++) {
		if (p->text[p->at] == '\n') {
			p->place.line++;
			p->place.column = 1;
		} else if (((unsigned char)p->text[p->at] & 0xc0) != 0x80) {
			p->place.column++;
		}
	}
	return p->place;
}

static int refuse(struct parser *p, size_t at, int code, const char *why)
{
	move_to(p, at);
	p->refused = why;
	p->refused_code = code;
	return 0;
}

/* Moves over what may stand between two tokens. False: something that yajl alone takes for white
 * space. */
static bool skip_to_token(struct parser *p)
{
	size_t at = p->end;

	while (at < p->nbytes && (is_space(p->text[at]) || is_separator(p->text[at])))
		at++;
	if (at < p->nbytes && (p->text[at] == '\v' || p->text[at] == '\f')) {
		refuse(p, at, -EINVAL,
		       "white space in JSON is blanks, tabs and line ends; here is a vertical "
		       "tab or form feed");
		return false;
	}
	move_to(p, at);
	return true;
}

static void token_done(struct parser *p)
{
	p->end = p->finishing ? p->nbytes : yajl_get_bytes_consumed(p->yajl);
	assert(p->end > p->at && p->end <= p->nbytes);
}

/* The value of the token at hand, hung into its container. NULL: refused. */
static struct json_value *add(struct parser *p, enum json_type type)
{
	struct json_value *value;

	if (!skip_to_token(p))
		return NULL;
	value = json_memory_carve(&p->document->memory, sizeof(*value));
	*value = (struct json_value){.type = type, .place = p->place, .raw = p->text + p->at};
	token_done(p);
	value->raw_length = p->end - p->at;
	if (!p->depth) {
		p->document->root = value;
		return value;
	}
	value->key = p->key;
	value->key_length = p->key_length;
	value->key_place = p->key_place;
	p->key = NULL;
	p->key_length = 0;
	p->key_place = (struct json_place){0};
	*p->open[p->depth - 1].tail = value;
	p->open[p->depth - 1].tail = &value->next;
	p->open[p->depth - 1].container->count++;
	return value;
}

static const char *keep(struct parser *p, const unsigned char *string, size_t length)
{
	char *copy = json_memory_carve(&p->document->memory, length + 1);

	memcpy(copy, string, length);
	copy[length] = '\0';
	return copy;
}

static int on_null(void *context)
{
	return add(context, JSON_NULL) != NULL;
}

static int on_boolean(void *context, int truth)
{
	return add(context, truth ? JSON_TRUE : JSON_FALSE) != NULL;
}

static int on_number(void *context, const char *digits, size_t length)
{
	struct json_value *value = add(context, JSON_NUMBER);

	(void)digits;
	if (!value)
		return 0;
	/* The last number of the text ends where its digits do, not where the text does. */
	value->raw_length = length;
	return 1;
}

static int on_string(void *context, const unsigned char *string, size_t length)
{
	struct json_value *value = add(context, JSON_STRING);

	if (!value)
		return 0;
	value->string = keep(context, string, length);
	value->length = length;
	return 1;
}

static int on_key(void *context, const unsigned char *string, size_t length)
{
	struct parser *p = context;

	if (!skip_to_token(p))
		return 0;
	p->key_place = p->place;
	token_done(p);
	p->key = keep(p, string, length);
	p->key_length = length;
	return 1;
}

static int open_container(struct parser *p, enum json_type type)
{
	struct json_value *value;

	if (p->depth == JSON_DEPTH_MAX)
		return skip_to_token(p)
			       ? refuse(p, p->at, -EFBIG,
					"objects and lists lie inside each other more than 512 "
					"deep, which is the limit")
			       : 0;
	value = add(p, type);
	if (!value)
		return 0;
	p->open[p->depth].container = value;
	p->open[p->depth].tail = &value->first;
	p->depth++;
	return 1;
}

static int close_container(struct parser *p)
{
	if (!skip_to_token(p))
		return 0;
	token_done(p);
	assert(p->depth);
	p->depth--;
	return 1;
}

static int on_start_map(void *context)
{
	return open_container(context, JSON_OBJECT);
}

static int on_start_array(void *context)
{
	return open_container(context, JSON_ARRAY);
}

static int on_end_array(void *context)
{
	return close_container(context);
}

static int by_key(const void *left, const void *right)
{
	const struct json_value *a = *(struct json_value *const *)left;
	const struct json_value *b = *(struct json_value *const *)right;
	size_t length = a->key_length < b->key_length ? a->key_length : b->key_length;
	int order = memcmp(a->key, b->key, length);

	if (order)
		return order;
	if (a->key_length != b->key_length)
		return a->key_length < b->key_length ? -1 : 1;
	return a->raw < b->raw ? -1 : a->raw > b->raw; /* in the order of the text */
}

static bool same_key(const struct json_value *a, const struct json_value *b)
{
	return a->key_length == b->key_length && !memcmp(a->key, b->key, a->key_length);
}

/* By sorting, so that an object of a million keys does not take a million million comparisons. */
static void find_duplicates(struct parser *p, struct json_value *object)
{
	struct json_memory *memory = &p->document->memory;
	struct json_value **members, *member;
	size_t n = 0;

	if (object->count < 2)
		return;
	members = json_memory_alloc(memory, object->count * sizeof(struct json_value *));
	for (member = object->first; member; member = member->next)
		members[n++] = member;
	assert(n == object->count);
	qsort(members, n, sizeof(struct json_value *), by_key);
	for (size_t i = 1; i < n; i++) {
		if (!same_key(members[i - 1], members[i]))
			continue;
		members[i]->earlier = members[i - 1];
		if (!object->duplicate || members[i]->raw < object->duplicate->raw)
			object->duplicate = members[i];
	}
	json_memory_release(memory, members);
}

static int on_end_map(void *context)
{
	struct parser *p = context;

	if (!close_container(p))
		return 0;
	find_duplicates(p, p->open[p->depth].container);
	return 1;
}

static const yajl_callbacks events = {
	.yajl_null = on_null,
	.yajl_boolean = on_boolean,
	.yajl_number = on_number,
	.yajl_string = on_string,
	.yajl_start_map = on_start_map,
	.yajl_map_key = on_key,
	.yajl_end_map = on_end_map,
	.yajl_start_array = on_start_array,
	.yajl_end_array = on_end_array,
};

static int say(struct parser *p, const char *name, int code, const char *text,
	       struct nvs_error *error)
{
	char label[208];

	return error_about(error, code, NULL, p->place.line, 0, "%s:%u:%u: %s",
			   json_file_label(name, label), p->place.line, p->place.column, text);
}

/* What yajl says, in the words of one who has to mend the file. */
static const char *expected(const char *yajl_text)
{
	static const struct {
		const char *part, *text;
	} texts[] = {
		{"invalid object key", "a key in double quotes is expected here"},
		{"separated by a colon", "a ':' is expected after a key"},
		{"after key and value", "a ',' or '}' is expected after a value in an object"},
		{"after array element", "a ',' or ']' is expected after a value in a list"},
		{"trailing garbage", "the document ended before this; nothing may follow it"},
		{"probable comment", "JSON has no comments"},
		{"unallowed token", "a value is expected here"},
		{"invalid char in json text", "this is nothing that JSON has"},
		{"invalid string in json text", "this is nothing that JSON has"},
		{"invalid character inside string",
		 "a string that begins here has a line end or another control character in it; a "
		 "closing '\"' may be missing"},
		{"occurs before a character",
		 "a string that begins here has a '\\' before a character that it may not precede"},
		{"after '\\u'", "a string that begins here has a '\\u' without four hex digits"},
		{"after the decimal point", "a number that begins here has no digit after its '.'"},
		{"after the exponent", "a number that begins here has no digit in its exponent"},
		{"after the minus sign", "a number that begins here has no digit after its '-'"},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (strstr(yajl_text, texts[i].part))
			return texts[i].text;
	return yajl_text;
}

/* Advice on a token that often stands where it may not; or "". */
static const char *advice(const struct parser *p)
{
	static const struct {
		const char *token, *text;
	} advices[] = {
		{"'", "; strings are written in double quotes"},
		{"True", "; write true"},
		{"False", "; write false"},
		{"None", "; write null"},
		{"NaN", "; JSON has no NaN"},
		{"Infinity", "; JSON has no infinity"},
		{"-Infinity", "; JSON has no infinity"},
		{"#", "; JSON has no comments"},
		{"+", "; a number begins with a digit or '-'"},
		{".", "; a number begins with a digit or '-'"},
	};
	size_t left = p->nbytes - p->at, before = p->at;

	for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); i++) {
		size_t length = strlen(advices[i].token);

		if (length <= left && !memcmp(p->text + p->at, advices[i].token, length))
			return advices[i].text;
	}
	if (left && isalpha((unsigned char)p->text[p->at]) && before &&
	    !isalnum((unsigned char)p->text[before - 1]))
		return "; keys and strings are written in double quotes";
	while (before && is_space(p->text[before - 1]))
		before--;
	if (left && (p->text[p->at] == ']' || p->text[p->at] == '}') && before &&
	    p->text[before - 1] == ',')
		return "; there is a comma too many before it";
	return "";
}

/* The token at hand, as far as one line shows it well. */
static const char *token_text(const struct parser *p, char token[32])
{
	size_t n = 0;

	while (n < 24 && p->at + n < p->nbytes) {
		unsigned char c = (unsigned char)p->text[p->at + n];

		if (c <= ' ' || c >= 0x7f || (n && strchr(",]}", c)))
			break;
		token[n++] = (char)c;
	}
	token[n] = '\0';
	return n ? token : "a character that can't be shown";
}

static int ended_early(struct parser *p, const char *name, struct nvs_error *error)
{
	const struct json_value *container;
	size_t at = p->nbytes;
	char text[160];

	while (at > p->at && is_space(p->text[at - 1]))
		at--;
	move_to(p, at);
	if (!p->depth)
		return say(p, name, -EINVAL,
			   p->end ? "the document ends too early"
				  : "there is no JSON in it; a JSON object is expected",
			   error);
	container = p->open[p->depth - 1].container;
	snprintf(text, sizeof(text), "the document ends before the %s that begins on line %u does",
		 container->type == JSON_OBJECT ? "object" : "list", container->place.line);
	return say(p, name, -EINVAL, text, error);
}

/* Where the token begins that ends at `end`, which a comma or colon may be itself. */
static void move_to_culprit(struct parser *p, size_t end)
{
	size_t at = p->end;

	while (at < p->nbytes &&
	       (is_space(p->text[at]) || (at + 1 < end && is_separator(p->text[at]))))
		at++;
	move_to(p, at);
}

static int syntax_error(struct parser *p, const char *name, struct nvs_error *error)
{
	size_t end = p->finishing ? p->nbytes : yajl_get_bytes_consumed(p->yajl);
	char *what, token[32], text[512];

	if (p->refused)
		return say(p, name, p->refused_code, p->refused, error);
	what = (char *)yajl_get_error(p->yajl, 0, (const unsigned char *)p->text, p->nbytes);
	what[strcspn(what, "\n")] = '\0';
	if (strstr(what, "premature EOF"))
		return ended_early(p, name, error);
	move_to_culprit(p, end);
	if (p->at == p->nbytes)
		return ended_early(p, name, error);
	snprintf(text, sizeof(text), "%s; found %s%s", expected(what), token_text(p, token),
		 advice(p));
	return say(p, name, -EINVAL, text, error);
}

/* Length of the UTF-8 character at `text`; 0: it is none. */
static size_t utf8_length(const unsigned char *text, size_t left)
{
	static const struct {
		unsigned char mask, lead;
		uint32_t first; /* what is less has a shorter form */
	} forms[] = {
		{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};

	for (size_t n = 0; n < 4; n++) {
		uint32_t point = text[0] & (unsigned char)~forms[n].mask;

		if ((text[0] & forms[n].mask) != forms[n].lead)
			continue;
		for (size_t i = 1; i <= n; i++) {
			if (i >= left || (text[i] & 0xc0) != 0x80)
				return 0;
			point = point << 6 | (text[i] & 0x3f);
		}
		if (point < forms[n].first || point > 0x10ffff || (point >> 11) == 0x1b)
			return 0;
		return n + 1;
	}
	return 0;
}

/* yajl lets overlong forms and surrogates pass, so the text is looked over first. */
static int check_text(struct parser *p, const char *name, struct nvs_error *error)
{
	size_t at = 0;

	if (p->nbytes >= 3 && !memcmp(p->text, "\xef\xbb\xbf", 3))
		return say(p, name, -EINVAL,
			   "the text begins with a byte order mark, which JSON does not have; "
			   "save it as plain UTF-8",
			   error);
	while (at < p->nbytes) {
		size_t length = utf8_length((const unsigned char *)p->text + at, p->nbytes - at);

		if (!length) {
			char text[80];

			snprintf(text, sizeof(text), "byte 0x%02x is not UTF-8; save it as UTF-8",
				 (unsigned)(unsigned char)p->text[at]);
			move_to(p, at);
			return say(p, name, -EINVAL, text, error);
		}
		at += length;
	}
	return 0;
}

static int parse(struct parser *p, const char *name, struct nvs_error *error)
{
	yajl_alloc_funcs memory = {json_memory_alloc, json_memory_resize, json_memory_release,
				   &p->document->memory};
	yajl_status status;

	p->yajl = yajl_alloc(&events, &memory, p);
	status = yajl_parse(p->yajl, (const unsigned char *)p->text, p->nbytes);
	if (status == yajl_status_ok) {
		p->finishing = true;
		status = yajl_complete_parse(p->yajl);
	}
	if (status == yajl_status_ok && !skip_to_token(p)) /* to look at the white space */
		status = yajl_status_client_canceled;
	if (status != yajl_status_ok)
		return syntax_error(p, name, error);
	assert(p->document->root && !p->depth);
	yajl_free(p->yajl);
	return 0;
}

static int parse_or_leave(struct json_document *document, const char *text, size_t nbytes,
			  const char *name, struct nvs_error *error)
{
	struct parser p = {.document = document,
			   .text = text,
			   .nbytes = nbytes,
			   .place = {.line = 1, .column = 1}};
	char label[208], size[32];
	int result;

	result = check_text(&p, name, error);
	if (result)
		return result;
	if (setjmp(document->memory.exhausted))
		return error_set(error, -ENOMEM,
				 "%s: no memory to read it (it may take %s); is it a "
				 "configuration?",
				 json_file_label(name, label),
				 size_text(document->memory.max, size));
	return parse(&p, name, error);
}

int json_parse(struct json_document **document, const char *text, size_t nbytes, const char *name,
	       size_t memory_max, struct nvs_error *error)
{
	struct json_document *fresh;
	char label[208], size[32], limit[32];
	int result;

	assert(document && name && (text || !nbytes));
	*document = NULL;
	if (nbytes > JSON_TEXT_MAX)
		return error_set(error, -EFBIG,
				 "%s: it is %s long; a configuration of up to %s is read",
				 json_file_label(name, label), size_text(nbytes, size),
				 size_text(JSON_TEXT_MAX, limit));
	fresh = calloc(1, sizeof(*fresh));
	if (!fresh)
		return error_set(error, -ENOMEM, "%s: no memory to read it",
				 json_file_label(name, label));
	json_memory_open(&fresh->memory, memory_max);
	result = parse_or_leave(fresh, nbytes ? text : "", nbytes, name, error);
	if (result) {
		json_free(fresh);
		return result;
	}
	*document = fresh;
	return 0;
}

void json_free(struct json_document *document)
{
	if (!document)
		return;
	json_memory_close(&document->memory);
	free(document);
}

const struct json_value *json_root(const struct json_document *document)
{
	return document->root;
}

const char *json_file_label(const char *name, char label[208])
{
	size_t length = strlen(name);

	if (length < 200)
		snprintf(label, 208, "%s", name);
	else
		snprintf(label, 208, "...%s", name + length - 196);
	return label;
}
