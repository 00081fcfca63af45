/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the blocks that nvswap reads and stores each value at the offset that the table of keys
 * gives. Relies on the document for places and duplicates; ignores all other blocks.
 */
#include "config/reader.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/numbers.h"

/* `why` follows the value: ", which is negative", or "". */
static int refuse_value(struct reader *r, const struct json_value *value, const char *why)
{
	const struct config_key *key = r->key;
	char shown[SHOWN_BYTES + 8], allows[160];
	bool may_be_auto = config_blocks[key->block].takes_auto && key->type != KEY_BLOCK;
	bool has_meaning = *key->meaning != '\0';

	return reader_complain(r, &value->place, r->name, "%s is %s%s; it must be %s%s%s%s%s",
			       r->name, reader_show_value(value, shown), why,
			       config_key_allows(key, allows), may_be_auto ? ", or \"auto\"" : "",
			       has_meaning ? " (" : "", key->meaning, has_meaning ? ")" : "");
}

static int refuse_count(struct reader *r, const struct json_value *list)
{
	char why[48];

	snprintf(why, sizeof(why), " of %u", list->count);
	return refuse_value(r, list, why);
}

static void *place_of(struct reader *r)
{
	return config_key_at(&r->config, r->key);
}

/* The value, or the number in its text where DeepSpeed takes it: " 16 ", "0.5", "+.5", and "1e-3"
 * of a real number. NULL: neither. */
static const struct json_value *as_number(const struct config_key *key,
					  const struct json_value *value, struct json_value *number)
{
	static const char digits[] = "0123456789", blanks[] = " \t\r\n";
	const char *at;
	size_t whole, fraction = 0;

	if (value->type == JSON_NUMBER)
		return value;
	if (value->type != JSON_STRING || !config_blocks[key->block].is_model)
		return NULL;
	*number = *value;
	number->type = JSON_NUMBER;
	at = value->string + strspn(value->string, blanks);
	number->raw = *at == '+' ? at + 1 : at;
	at += *at == '+' || *at == '-';
	whole = strspn(at, digits);
	at += whole;
	if (*at == '.') {
		fraction = strspn(at + 1, digits);
		if (!fraction)
			return NULL;
		at += 1 + fraction;
	}
	if (!whole && !fraction)
		return NULL;
	if ((*at == 'e' || *at == 'E') && key->type == KEY_REAL) {
		at += 1 + (at[1] == '+' || at[1] == '-');
		if (!strspn(at, digits))
			return NULL;
		at += strspn(at, digits);
	}
	number->raw_length = (size_t)(at - number->raw);
	at += strspn(at, blanks);
	return at == value->string + value->length ? number : NULL;
}

/* Reads "4k", "1M", "2G" or "50T": digits and a letter, in units of 1024. */
static bool read_suffixed(const struct json_value *value, uint64_t *number)
{
	static const char letters[] = "kmgt";
	const char *text = value->string, *letter;
	size_t digits;
	unsigned bits;

	if (value->type != JSON_STRING)
		return false;
	digits = strspn(text, "0123456789");
	if (!digits || digits > 18 || !text[digits] || digits + 1 != value->length)
		return false;
	letter = strchr(letters, tolower((unsigned char)text[digits]));
	if (!letter)
		return false;
	bits = 10 * (unsigned)(letter - letters + 1);
	*number = strtoull(text, NULL, 10);
	*number = *number > UINT64_MAX >> bits ? UINT64_MAX : *number << bits;
	return true;
}

static int read_whole(struct reader *r, const struct json_value *value)
{
	const struct config_key *key = r->key;
	struct json_value text;
	const struct json_value *number = as_number(key, value, &text);
	uint64_t whole;

	if (!(key->suffix || r->from_call) || !read_suffixed(value, &whole)) {
		if (!number)
			return refuse_value(r, value, "");
		switch (json_read_whole(number, &whole)) {
		case JSON_FRACTION:
			return refuse_value(r, value, ", which is not a whole number");
		case JSON_NEGATIVE:
			return refuse_value(r, value, ", which is negative");
		case JSON_TOO_LARGE:
			return refuse_value(r, value, ", which is too large");
		case JSON_WHOLE:
			break;
		}
	}
	if (whole > key->max)
		return refuse_value(r, value, ", which is too large");
	if (whole < key->min)
		return refuse_value(r, value, ", which is too small");
	if (key->multiple_of && whole % key->multiple_of)
		return refuse_value(r, value, "");
	config_key_set_whole(key, &r->config, whole);
	return 0;
}

/* A number, or the name of an environment variable: capitals, digits and underscores. */
static int read_rank(struct reader *r, const struct json_value *value)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
	char *variable = r->config.rank_variable;

	if (value->type != JSON_STRING) {
		variable[0] = '\0';
		return read_whole(r, value);
	}
	if (!value->length || value->length >= sizeof(r->config.rank_variable) ||
	    strspn(value->string, allowed) != value->length || value->string[0] <= '9')
		return refuse_value(r, value, "");
	memcpy(variable, value->string, value->length + 1);
	r->config.rank = 0;
	return 0;
}

/* Reads a real number in [0, max], or in [0, max) if `open`. */
static int read_real(struct reader *r, const struct json_value *value, double max, bool open,
		     double *into)
{
	struct json_value text;
	const struct json_value *number = as_number(r->key, value, &text);
	double real = 0;
	int result;

	/* No norm exceeds it, so there is no clipping: 0. */
	if (value->type == JSON_NONFINITE && *value->raw == 'I' &&
	    r->key->place == offsetof(struct nvs_config, gradient_clipping)) {
		*into = 0;
		return 0;
	}
	if (!number)
		return refuse_value(r, value, "");
	result = json_read_real(number, &real);
	if (result == -ENOMEM)
		return error_set(r->error, result, "%s: out of memory", r->file);
	if (result)
		return refuse_value(r, value, ", which is out of the range of a double");
	if (real < 0)
		return refuse_value(r, value, ", which is negative");
	if (real > max || (open && real >= max))
		return refuse_value(r, value, ", which is too large");
	*into = real;
	return 0;
}

static int read_betas(struct reader *r, const struct json_value *value)
{
	double *betas = place_of(r);
	int result;

	if (value->type != JSON_ARRAY)
		return refuse_value(r, value, "");
	if (value->count != 2)
		return refuse_count(r, value);
	result = read_real(r, value->first, 1, true, &betas[0]);
	return result ? result : read_real(r, value->first->next, 1, true, &betas[1]);
}

static int read_choice(struct reader *r, const struct json_value *value)
{
	bool is_grad = r->key->place == offsetof(struct nvs_config, grad_accum_dtype);

	if (is_grad && value->type == JSON_NULL) {
		config_key_set_default(r->key, &r->config);
		return 0;
	}
	for (unsigned i = 0; i < r->key->choices->n; i++) {
		const char *choice = config_choice_name(r->key->choices, i);

		if (choice && json_is_string(value, choice)) {
			config_key_set_whole(r->key, &r->config, i);
			r->grad_named |= is_grad;
			return 0;
		}
	}
	return refuse_value(r, value, "");
}

static int read_name(struct reader *r, const struct json_value *value)
{
	if (value->type != JSON_STRING || value->length >= sizeof(r->config.adam.type) ||
	    strlen(value->string) != value->length)
		return refuse_value(r, value, "");
	memcpy(place_of(r), value->string, value->length + 1);
	return 0;
}

static int read_paths(struct reader *r, const struct json_value *value)
{
	const struct json_value *item = value->type == JSON_ARRAY ? value->first : value;
	struct offload_config *offload = place_of(r);
	bool *fresh = &r->new_paths[offload - r->config.offload];
	const char *paths[NVS_PATHS_MAX], *flaw;
	char shown[SHOWN_BYTES + 8];
	unsigned n = 0;

	if (value->type == JSON_NULL)
		return 0; /* as in DeepSpeed, the same as no key */
	if (value->type == JSON_ARRAY && (!value->count || value->count > NVS_PATHS_MAX))
		return refuse_count(r, value);
	for (; item; item = value->type == JSON_ARRAY ? item->next : NULL) {
		if (item->type != JSON_STRING)
			return refuse_value(r, item, "");
		if (strlen(item->string) != item->length || item->lone_surrogate)
			return refuse_value(r, item, ", which is not a valid path");
		assert(n < NVS_PATHS_MAX);
		paths[n] = item->string;
		flaw = path_flaw(paths, n++);
		if (flaw)
			return reader_complain(r, &item->place, r->name, "%s: %s %s", r->name,
					       reader_show_value(item, shown), flaw);
	}
	if (*fresh && r->key->block != BLOCK_NVSWAP)
		return 0; /* the nvswap block's are in its place */
	if (*fresh)
		paths_free(offload);
	*fresh = true;
	return paths_copy(offload, paths, n)
		       ? error_set(r->error, -ENOMEM, "%s: out of memory", r->file)
		       : 0;
}

/* true, false, 1 and 0; and in words where DeepSpeed takes those. */
static int read_bool(struct reader *r, const struct json_value *value)
{
	static const char *const words[][2] = {{"false", "true"}, {"off", "on"}, {"no", "yes"},
					       {"f", "t"},	  {"n", "y"},	 {"0", "1"}};
	bool is_word = value->type == JSON_STRING && config_blocks[r->key->block].is_model;
	uint64_t number = 2;

	if (value->type == JSON_TRUE || value->type == JSON_FALSE)
		number = value->type == JSON_TRUE;
	else if (value->type == JSON_NUMBER && json_read_whole(value, &number) != JSON_WHOLE)
		number = 2;
	for (size_t i = 0; is_word && i < 2 * COUNT_OF(words); i++)
		if (value->length == strlen(words[i / 2][i % 2]) &&
		    !strcasecmp(value->string, words[i / 2][i % 2]))
			number = i % 2;
	if (number > 1)
		return refuse_value(r, value, "");
	if (r->key->type == KEY_VERIFY)
		number = number ? VERIFY_ON : VERIFY_OFF;
	config_key_set_whole(r->key, &r->config, number);
	return 0;
}

static int read_value(struct reader *r, const struct json_value *value)
{
	switch (r->key->type) {
	case KEY_BOOL:
	case KEY_VERIFY:
		return read_bool(r, value);
	case KEY_U32:
	case KEY_U64:
		return r->key->place == offsetof(struct nvs_config, rank) ? read_rank(r, value)
									  : read_whole(r, value);
	case KEY_REAL:
		return read_real(r, value, r->key->real_max, false, place_of(r));
	case KEY_BETAS:
		return read_betas(r, value);
	case KEY_CHOICE:
		return read_choice(r, value);
	case KEY_NAME:
		return read_name(r, value);
	case KEY_PATHS:
		return read_paths(r, value);
	case KEY_BLOCK:
	case KEY_UNUSED:
		break;
	}
	assert(false);
	return -EINVAL;
}

/* The alias of this key that the file also sets, or NULL. */
static const struct config_key *other_name(const struct reader *r)
{
	const struct config_key *key = r->key;

	if (key->type != KEY_U32 && key->type != KEY_U64)
		return NULL;
	for (unsigned i = 0; i < config_key_count; i++)
		if (&config_keys[i] != key && config_keys[i].place == key->place &&
		    config_keys[i].type == key->type && r->seen[i])
			return &config_keys[i];
	return NULL;
}

static int read_setting(struct reader *r, const struct json_value *value)
{
	const struct config_key *key = r->key, *other = other_name(r);
	uint64_t before = other ? config_key_whole(other, &r->config) : 0;
	int result = 0;

	if (json_is_string(value, "auto") && config_blocks[key->block].takes_auto &&
	    key->type != KEY_PATHS) {
		config_key_set_default(key, &r->config);
		reader_say(r, NVS_LOG_INFO, &value->place, "%s is \"auto\"; using the default, %s",
			   r->name, key->default_text ? key->default_text : "none");
	} else {
		result = read_value(r, value);
	}
	if (result)
		return result;
	r->seen[key - config_keys] = value;
	if (other && config_key_whole(other, &r->config) != before)
		return reader_complain(
			r, &value->place, r->name,
			"%s is %llu, but its alias `%s` is %llu on line %u; remove one of them",
			r->name, (unsigned long long)config_key_whole(key, &r->config), other->name,
			(unsigned long long)before, r->seen[other - config_keys]->place.line);
	return 0;
}

/* `path` is the block's path in the file: "zero_optimization.offload_param", "" for the top. */
static int read_member(struct reader *r, enum config_block block, const struct json_value *member,
		       const char *path)
{
	const struct config_key *key = config_key_find(block, member->key, member->key_length);
	char name[NAME_BYTES], shown[SHOWN_BYTES + 8], text[256];

	snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
		 reader_show(member->key, member->key_length, shown));
	r->key = key;
	memcpy(r->name, name, sizeof(name));
	if (member->earlier)
		return reader_complain(r, &member->key_place, name,
				       "%s is already set on line %u; remove one of them", name,
				       member->earlier->key_place.line);
	if (!key && config_blocks[block].strict)
		return reader_complain(
			r, &member->key_place, name, "%s is not a key of `%s`; %s", name,
			config_blocks[block].name,
			config_key_suggest(block, member->key, member->key_length, text));
	if (!key)
		return 0;
	if (key->type == KEY_UNUSED) {
		reader_say(r, NVS_LOG_WARNING, &member->key_place, "%s has no effect in nvswap: %s",
			   name, key->meaning);
		return 0;
	}
	if (key->type != KEY_BLOCK)
		return read_setting(r, member);

	const struct json_value *first = r->blocks[key->child];
	int result = 0;

	if (member->type == JSON_NULL)
		return 0; /* as in DeepSpeed, the same as no block */
	if (key->child == BLOCK_ZERO && (member->type == JSON_TRUE || member->type == JSON_FALSE)) {
		reader_say(r, NVS_LOG_WARNING, &member->place,
			   "%s has been an object since DeepSpeed 0.3; true and false offload "
			   "nothing",
			   name);
		return 0;
	}
	if (member->type != JSON_OBJECT)
		return refuse_value(r, member, "");
	if (first)
		return reader_complain(
			r, &member->key_place, name,
			"%s is the same block as `%.*s` on line %u; remove one of them", name,
			(int)first->key_length, first->key, first->key_place.line);
	r->blocks[key->child] = member;
	for (const struct json_value *inner = member->first; inner && !result; inner = inner->next)
		result = read_member(r, key->child, inner, name);
	return result;
}

static int finish(struct reader *r, int result)
{
	struct nvs_config *dropped = &r->config;

	if (!result)
		result = rules_apply(r);
	if (!result)
		dropped = r->caller;
	for (int i = NVS_OFFLOAD_PARAM; i <= NVS_OFFLOAD_OPTIMIZER; i++)
		if (r->new_paths[i])
			paths_free(&dropped->offload[i]);
	if (!result)
		*r->caller = r->config;
	return result;
}

int reader_set(struct reader *r, const struct json_value *value)
{
	return finish(r, read_setting(r, value));
}

int reader_read(struct reader *r, const struct json_value *root)
{
	bool strict = r->config.strict; /* a program's choice, which no file takes back */
	char shown[SHOWN_BYTES + 8];
	int result = 0;

	if (root->type != JSON_OBJECT)
		return reader_complain(r, &root->place, NULL,
				       "the document is %s; it must be an object: a DeepSpeed "
				       "configuration or some of its blocks",
				       reader_show_value(root, shown));
	for (const struct json_value *member = root->first; member && !result;
	     member = member->next)
		result = read_member(r, BLOCK_ROOT, member, "");
	r->config.strict |= strict;
	return finish(r, result ? result : misplaced_report(r, root));
}
