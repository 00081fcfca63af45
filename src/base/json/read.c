/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser: checks that the text is UTF-8, then parses it in one pass without recursion. Values,
 * keys and strings are allocated from chunks that live as long as the document.
 */
#include "base/json/read.h"

#include <ctype.h>
#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/numbers.h"
#include "base/text.h"

#define CHUNK_BYTES ((size_t)16 << 10)

struct chunk {
	alignas(max_align_t) struct chunk *next;
};

struct json_document {
	struct json_value *root;
	struct chunk *chunks;
	size_t used, max; /* bytes, including chunk headers */
	char *room;	  /* unused part of the newest chunk */
	size_t room_nbytes;
	struct json_value **sorted; /* scratch: the members of an object, by key */
	size_t sorted_room;
};

struct parser {
	struct json_document *document;
	const char *text, *end;
	const char *at;	    /* the next byte to read */
	const char *placed; /* the byte that `place` describes; only advances */
	struct json_place place;
	const char *name; /* name of the document, for errors */
	struct nvs_error *error;
	bool relaxed;
	unsigned depth;
	struct {
		struct json_value *container;
		struct json_value **tail;
	} open[JSON_DEPTH_MAX];
};

/* ---- Memory ---- */

/* NULL: memory_max is reached, or malloc failed. */
static void *carve(struct json_document *d, size_t nbytes)
{
	const size_t unit = alignof(struct json_value);
	size_t rounded = (nbytes + unit - 1) / unit * unit;
	char *piece;

	assert(rounded >= nbytes);
	if (rounded > d->room_nbytes) {
		size_t room = max_u64(rounded, CHUNK_BYTES), whole = room + sizeof(struct chunk);
		struct chunk *chunk = NULL;

		if (whole > room && whole <= d->max - d->used)
			chunk = malloc(whole);
		if (!chunk)
			return NULL;
		d->used += whole;
		chunk->next = d->chunks;
		d->chunks = chunk;
		d->room = (char *)(chunk + 1);
		d->room_nbytes = room;
	}
	piece = d->room;
	d->room += rounded;
	d->room_nbytes -= rounded;
	return piece;
}

/* ---- Errors ---- */

static struct json_place move_to(struct parser *p, const char *at)
{
	assert(at >= p->placed && at <= p->end);
	for (; p->placed < at; p->placed++) {
		if (*p->placed == '\n') {
			p->place.line++;
			p->place.column = 1;
		} else if (((unsigned char)*p->placed & 0xc0) != 0x80) {
			p->place.column++;
		}
	}
	return p->place;
}

__attribute__((format(printf, 4, 5))) static int refuse_text(struct parser *p, const char *at,
							     int code, const char *format, ...)
{
	struct json_place place = move_to(p, at);
	char label[208], text[256];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	return error_about(p->error, code, NULL, place.line, 0, "%s:%u:%u: %s",
			   json_file_label(p->name, label), place.line, place.column, text);
}

static int no_memory(const struct parser *p)
{
	char label[208], size[32];

	return error_set(p->error, -ENOMEM, "%s: out of memory reading it (limit %s)",
			 json_file_label(p->name, label), size_text(p->document->max, size));
}

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int ended_early(struct parser *p)
{
	const struct json_value *container;
	const char *at = p->end;

	while (at > p->placed && is_space(at[-1]))
		at--;
	if (!p->depth)
		return refuse_text(p, at, -EINVAL, "%s",
				   at == p->text ? "there is no JSON in it"
						 : "the document ends before its string does");
	container = p->open[p->depth - 1].container;
	return refuse_text(
		p, at, -EINVAL, "the document ends before the %s that begins on line %u does",
		container->type == JSON_OBJECT ? "object" : "list", container->place.line);
}

/* The current token, shortened for an error message. A file that does not begin as JSON may be
 * another program's secret, so outside objects and lists only one character is quoted. */
static const char *token_text(const struct parser *p, char token[32])
{
	size_t n = 0, most = p->depth ? 24 : 1;

	while (n < most && p->at + n < p->end) {
		unsigned char c = (unsigned char)p->at[n];

		if (c <= ' ' || c >= 0x7f || (n && strchr(",]}", c)))
			break;
		token[n++] = (char)c;
	}
	token[n] = '\0';
	return n ? token : "a character that can't be shown";
}

/* Advice on common mistakes at the current token, or "". */
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
		{"//", "; JSON has no comments"},
		{"/*", "; JSON has no comments"},
		{"+", "; a number begins with a digit or '-'"},
		{".", "; a number begins with a digit or '-'"},
		{"\v", ", a vertical tab, which is no white space in JSON"},
		{"\f", ", a form feed, which is no white space in JSON"},
	};

	size_t left = (size_t)(p->end - p->at);
	const char *before = p->at;

	for (size_t i = 0; i < COUNT_OF(advices); i++) {
		size_t length = strlen(advices[i].token);

		if (length <= left && !memcmp(p->at, advices[i].token, length))
			return p->relaxed && *p->at == '/'
				       ? "; a comment that begins here does not end"
				       : advices[i].text;
	}
	if (isalpha((unsigned char)*p->at) && before > p->text &&
	    !isalnum((unsigned char)before[-1]))
		return "; keys and strings are written in double quotes";
	while (before > p->text && is_space(before[-1]))
		before--;
	if ((*p->at == ']' || *p->at == '}') && before > p->text && before[-1] == ',')
		return "; there is a comma too many before it";
	return "";
}

static int unexpected(struct parser *p, const char *expected)
{
	char token[32];

	if (p->at == p->end)
		return ended_early(p);
	return refuse_text(p, p->at, -EINVAL, "%s; found %s%s", expected, token_text(p, token),
			   advice(p));
}

/* ---- Strings ---- */

/* The code unit of the escape \uXXXX at `raw`; -1: another escape, or none. */
static int32_t read_unit(const char *raw, const char *end)
{
	int32_t unit = 0;

	if (end - raw < 6 || raw[0] != '\\' || raw[1] != 'u')
		return -1;
	for (int i = 2; i < 6; i++) {
		if (!isxdigit((unsigned char)raw[i]))
			return -1;
		unit = unit << 4 | (is_digit(raw[i]) ? raw[i] - '0' : (raw[i] | 0x20) - 'a' + 10);
	}
	return unit;
}

/* Decodes the escape at p->at, and the second one of a pair; half a pair is U+FFFD. Returns what is
 * wrong with it, or NULL. */
static const char *decode_escape(struct parser *p, const char *end, char **to, bool *half)
{
	static const char names[] = "bfnrt\"\\/", bytes[] = "\b\f\n\r\t\"\\/";
	static const uint8_t leads[] = {0, 0xc0, 0xe0, 0xf0};
	const char *name = memchr(names, p->at[1], sizeof(names) - 1);
	int32_t unit = read_unit(p->at, end), low;
	unsigned more;

	if (name) {
		*(*to)++ = bytes[name - names];
		p->at += 2;
		return NULL;
	}
	if (p->at[1] != 'u')
		return "an invalid escape; write a backslash as '\\\\'";
	if (unit < 0)
		return "a '\\u' without four hex digits";
	p->at += 6;
	low = read_unit(p->at, end);
	if (unit >= 0xd800 && unit <= 0xdbff && low >= 0xdc00 && low <= 0xdfff) {
		unit = 0x10000 + ((unit & 0x3ff) << 10 | (low & 0x3ff));
		p->at += 6;
	} else if (unit >= 0xd800 && unit <= 0xdfff) {
		unit = 0xfffd;
		*half = true;
	}
	more = (unit >= 0x80) + (unit >= 0x800) + (unit >= 0x10000);
	*(*to)++ = (char)(leads[more] | unit >> 6 * more);
	while (more--)
		*(*to)++ = (char)(0x80 | (unit >> 6 * more & 0x3f));
	return NULL;
}

/* Decodes the string that begins at p->at and moves past it. */
static int read_string(struct parser *p, const char **string, size_t *length, bool *lone_surrogate)
{
	const char *begin = p->at++, *end = p->at, *wrong = NULL;
	char *copy, *to;

	/* A quote behind a backslash does not end it. */
	while (end < p->end && *end != '"' && (unsigned char)*end >= ' ')
		end += *end == '\\' ? 2 : 1;
	if (end >= p->end)
		return ended_early(p);
	copy = to = carve(p->document, (size_t)(end - begin));
	if (!copy)
		return no_memory(p);
	*lone_surrogate = false;
	while (p->at < end && !wrong) {
		if (*p->at == '\\')
			wrong = decode_escape(p, end, &to, lone_surrogate);
		else
			*to++ = *p->at++;
	}
	if (!wrong && *end != '"')
		wrong = "a line end or another control character in it; a closing '\"' may be "
			"missing";
	if (!wrong && *lone_surrogate && !p->relaxed)
		wrong = "half of a '\\u' pair, which is no character";
	if (wrong)
		return refuse_text(p, begin, -EINVAL, "a string that begins here has %s", wrong);
	*to = '\0';
	*string = copy;
	*length = (size_t)(to - copy);
	p->at++;
	return 0;
}

/* ---- Values ---- */

/* Moves past the comment at p->at. False: there is none, or it does not end. */
static bool skip_comment(struct parser *p)
{
	size_t left = (size_t)(p->end - p->at);
	const char *end;

	if (left > 1 && p->at[0] == '/' && p->at[1] == '*') {
		end = memmem(p->at + 2, left - 2, "*/", 2);
		if (end)
			p->at = end + 2;
		return end;
	}
	if (!left || (*p->at != '#' && (left < 2 || p->at[0] != '/' || p->at[1] != '/')))
		return false;
	end = memchr(p->at, '\n', left);
	p->at = end ? end : p->end;
	return true;
}

/* The next byte that is not white space or a comment; NUL at the end, where p->at is p->end. */
static char skip_to_token(struct parser *p)
{
	do
		while (p->at < p->end && is_space(*p->at))
			p->at++;
	while (p->relaxed && skip_comment(p));
	return p->at < p->end ? *p->at : '\0';
}

static bool skip_digits(struct parser *p)
{
	const char *begin = p->at;

	while (p->at < p->end && is_digit(*p->at))
		p->at++;
	return p->at > begin;
}

static bool skip_one(struct parser *p, const char *of)
{
	bool found = p->at < p->end && *p->at && strchr(of, *p->at);

	p->at += found;
	return found;
}

static int skip_number(struct parser *p, const char *begin)
{
	skip_one(p, "-");
	if (!skip_one(p, "0") && !skip_digits(p)) {
		p->at = begin;
		return unexpected(p, "a number that begins here has no digit after its '-'");
	}
	if (skip_one(p, ".") && !skip_digits(p))
		return refuse_text(p, begin, -EINVAL,
				   "a number that begins here has no digit after its '.'");
	if (skip_one(p, "eE")) {
		skip_one(p, "+-");
		if (!skip_digits(p))
			return refuse_text(
				p, begin, -EINVAL,
				"a number that begins here has no digit in its exponent");
	}
	return 0;
}

static bool skip_word(struct parser *p, const char *word)
{
	size_t length = strlen(word);

	if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0)
		return false;
	p->at += length;
	return true;
}

/* Reads a scalar, or the opening bracket of a container. */
static int read_value(struct parser *p, struct json_value *value)
{
	char c = skip_to_token(p);
	int rc = 0;

	if (p->at == p->end)
		return ended_early(p);
	value->raw = p->at;
	value->place = move_to(p, p->at);
	if (c == '{' || c == '[') {
		value->type = c == '{' ? JSON_OBJECT : JSON_ARRAY;
		if (p->depth == JSON_DEPTH_MAX)
			return refuse_text(
				p, p->at, -EFBIG,
				"objects and lists are nested more than 512 deep, which is "
				"the limit");
		p->open[p->depth].container = value;
		p->open[p->depth].tail = &value->first;
		p->depth++;
		p->at++;
		return 0;
	}
	if (c == '"') {
		value->type = JSON_STRING;
		rc = read_string(p, &value->string, &value->length, &value->lone_surrogate);
	} else if (p->relaxed &&
		   (skip_word(p, "NaN") || skip_word(p, "Infinity") || skip_word(p, "-Infinity"))) {
		value->type = JSON_NONFINITE;
	} else if (is_digit(c) || c == '-') {
		value->type = JSON_NUMBER;
		rc = skip_number(p, p->at);
	} else if (skip_word(p, "true")) {
		value->type = JSON_TRUE;
	} else if (skip_word(p, "false")) {
		value->type = JSON_FALSE;
	} else if (!skip_word(p, "null")) {
		rc = unexpected(p, "a value is expected here");
	}
	value->raw_length = (size_t)(p->at - value->raw);
	return rc;
}

/* ---- Containers ---- */

static int by_key(const void *left, const void *right)
{
	const struct json_value *a = *(struct json_value *const *)left;
	const struct json_value *b = *(struct json_value *const *)right;
	size_t length = min_u64(a->key_length, b->key_length);
	int order = memcmp(a->key, b->key, length);

	if (!order)
		order = (a->key_length > b->key_length) - (a->key_length < b->key_length);
	return order ? order : (a->raw > b->raw) - (a->raw < b->raw); /* in the order of the text */
}

static int close_container(struct parser *p)
{
	struct json_value *value = p->open[--p->depth].container;

	p->at++;
	value->raw_length = (size_t)(p->at - value->raw);
	if (value->type != JSON_OBJECT || value->count <= 1)
		return 0;

	struct json_document *d = p->document;
	size_t n = 0;

	/* Sorts the keys, because an object may have a million of them. */
	if (value->count > d->sorted_room) {
		size_t room = (size_t)value->count * 2;

		d->sorted = carve(d, room * sizeof(struct json_value *));
		if (!d->sorted)
			return no_memory(p);
		d->sorted_room = room;
	}
	for (struct json_value *member = value->first; member; member = member->next)
		d->sorted[n++] = member;
	assert(n == value->count);
	qsort(d->sorted, n, sizeof(struct json_value *), by_key);
	for (size_t i = 1; i < n; i++) {
		struct json_value *member = d->sorted[i], *earlier = d->sorted[i - 1];

		if (earlier->key_length != member->key_length ||
		    memcmp(earlier->key, member->key, member->key_length) != 0)
			continue;
		member->earlier = earlier;
		if (!value->duplicate || member->raw < value->duplicate->raw)
			value->duplicate = member;
	}
	return 0;
}

static int add_value(struct parser *p, struct json_value **out)
{
	struct json_value *value = carve(p->document, sizeof(*value)), *container;

	*out = value;
	if (!value)
		return no_memory(p);
	*value = (struct json_value){0};
	if (!p->depth) {
		p->document->root = value;
		return 0;
	}
	container = p->open[p->depth - 1].container;
	container->count++;
	*p->open[p->depth - 1].tail = value;
	p->open[p->depth - 1].tail = &value->next;
	if (container->type != JSON_OBJECT)
		return 0;

	bool lone_surrogate;
	int rc;

	if (skip_to_token(p) != '"')
		return unexpected(p, "a key in double quotes is expected here");
	value->key_raw = p->at;
	value->key_place = move_to(p, p->at);
	rc = read_string(p, &value->key, &value->key_length, &lone_surrogate);
	if (rc)
		return rc;
	if (skip_to_token(p) != ':')
		return unexpected(p, "a ':' is expected after a key");
	p->at++;
	return 0;
}

/* Closes the containers that end here; *next is the next value to read, NULL after the last. */
static int find_next(struct parser *p, struct json_value **next)
{
	*next = NULL;
	while (p->depth) {
		const struct json_value *container = p->open[p->depth - 1].container;
		bool object = container->type == JSON_OBJECT;
		char c = skip_to_token(p), closing = object ? '}' : ']';
		int rc;

		if (c == closing) {
			rc = close_container(p);
			if (rc)
				return rc;
			continue;
		}
		if (container->count && c != ',')
			return unexpected(
				p, object ? "a ',' or '}' is expected after a value in an object"
					  : "a ',' or ']' is expected after a value in a list");
		if (container->count) {
			p->at++;
			if (p->relaxed && skip_to_token(p) == closing)
				continue;
		}
		return add_value(p, next);
	}
	return 0;
}

static int check_text(struct parser *p)
{
	const char *at = p->text;

	if ((size_t)(p->end - p->text) > UINT32_MAX)
		return refuse_text(p, at, -EFBIG, "more than 4 GiB of JSON, which is the limit");
	if (p->end - at >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) {
		if (!p->relaxed)
			return refuse_text(
				p, at, -EINVAL,
				"the text begins with a byte order mark, which JSON does not "
				"have; save it as plain UTF-8");
		p->at = p->placed = at += 3;
	}
	while (at < p->end) {
		size_t length = (unsigned char)*at < 0x80 ? 1
							  : utf8_length(at, (size_t)(p->end - at));

		if (!length)
			return refuse_text(p, at, -EINVAL,
					   "byte 0x%02x is not UTF-8; save it as UTF-8",
					   (unsigned)(unsigned char)*at);
		at += length;
	}
	return 0;
}

/* ---- Documents ---- */

static int parse_text(struct json_document **document, const char *text, size_t nbytes,
		      const char *name, size_t memory_max, bool relaxed, struct nvs_error *error)
{
	struct json_document *fresh = calloc(1, sizeof(*fresh));
	const char *begin = nbytes ? text : "";
	struct parser parser = {.document = fresh,
				.text = begin,
				.at = begin,
				.placed = begin,
				.end = begin + nbytes,
				.place = {1, 1},
				.name = name,
				.error = error,
				.relaxed = relaxed},
		      *const p = &parser;
	char label[208];
	int rc;

	assert(document && name && (text || !nbytes));
	*document = NULL;
	if (!fresh)
		return error_set(error, -ENOMEM, "%s: out of memory reading it",
				 json_file_label(name, label));
	fresh->max = memory_max;

	struct json_value *value;

	rc = check_text(p);
	if (!rc)
		rc = add_value(p, &value);
	while (!rc && value) {
		rc = read_value(p, value);
		if (!rc)
			rc = find_next(p, &value);
	}
	if (!rc) {
		skip_to_token(p);
		if (p->at < p->end)
			rc = unexpected(p, "the document ended before this; nothing may follow it");
	}
	if (rc)
		json_free(fresh);
	else
		*document = fresh;
	return rc;
}

int json_parse(struct json_document **document, const char *text, size_t nbytes, const char *name,
	       size_t memory_max, struct nvs_error *error)
{
	return parse_text(document, text, nbytes, name, memory_max, false, error);
}

int json_parse_relaxed(struct json_document **document, const char *text, size_t nbytes,
		       const char *name, size_t memory_max, struct nvs_error *error)
{
	return parse_text(document, text, nbytes, name, memory_max, true, error);
}

void json_free(struct json_document *document)
{
	if (!document)
		return;
	while (document->chunks) {
		struct chunk *next = document->chunks->next;

		free(document->chunks);
		document->chunks = next;
	}
	free(document);
}

const struct json_value *json_root(const struct json_document *document)
{
	return document->root;
}

const struct json_value *json_member(const struct json_value *object, const char *key)
{
	size_t length = strlen(key);
	const struct json_value *member;

	/* Values of a list have no keys. */
	for (member = object ? object->first : NULL; member; member = member->next)
		if (member->key && member->key_length == length &&
		    !memcmp(member->key, key, length))
			return member;
	return NULL;
}

bool json_is_string(const struct json_value *value, const char *text)
{
	return value && value->type == JSON_STRING && value->length == strlen(text) &&
	       !memcmp(value->string, text, value->length);
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
