/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walks the blocks that nvswap reads and stores each value at the offset that the table of keys
 * gives. Relies on the document for places and duplicates; ignores all other blocks.
 */
#include "config/reader.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/numbers.h"

#define NAME_BYTES 128 /* bytes of "zero_optimization.offload_optimizer.<key>" */

/* `why` follows the value: ", which is negative", or "". */
static int refuse_value(struct reader *r, const struct config_key *key,
			const struct json_value *value, const char *name, const char *why)
{
	char shown[SHOWN_BYTES + 8], allows[160];
	bool may_be_auto = config_blocks[key->block].takes_auto && key->type != KEY_BLOCK;
	bool has_meaning = *key->meaning != '\0';

	return reader_complain(r, &value->place, name, "%s is %s%s; it must be %s%s%s%s%s", name,
			       reader_show_value(value, shown), why, config_key_allows(key, allows),
			       may_be_auto ? ", or \"auto\"" : "", has_meaning ? " (" : "",
			       key->meaning, has_meaning ? ")" : "");
}

static void *place_of(struct reader *r, const struct config_key *key)
{
	return (char *)&r->config + key->place;
}

static uint64_t whole_at(struct reader *r, const struct config_key *key)
{
	return key->type == KEY_U32 ? *(uint32_t *)place_of(r, key) : *(uint64_t *)place_of(r, key);
}

static int store_whole(struct reader *r, const struct config_key *key,
		       const struct json_value *value, const char *name, uint64_t whole)
{
	if (whole > key->max)
		return refuse_value(r, key, value, name, ", which is too large");
	if (whole < key->min)
		return refuse_value(r, key, value, name, ", which is too small");
	if (key->multiple_of && whole % key->multiple_of)
		return refuse_value(r, key, value, name, "");
	if (key->type == KEY_U32)
		*(uint32_t *)place_of(r, key) = (uint32_t)whole;
	else
		*(uint64_t *)place_of(r, key) = whole;
	return 0;
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

bool reader_with_suffix(const char *text, uint64_t *number)
{
	size_t digits = strspn(text, "0123456789");
	static const char letters[] = "kmgt";
	const char *letter;
	unsigned bits;

	if (!digits || digits > 18 || !text[digits] || text[digits + 1])
		return false;
	letter = strchr(letters, tolower((unsigned char)text[digits]));
	if (!letter)
		return false;
	bits = 10 * (unsigned)(letter - letters + 1);
	*number = strtoull(text, NULL, 10);
	*number = *number > UINT64_MAX >> bits ? UINT64_MAX : *number << bits;
	return true;
}

static int read_whole(struct reader *r, const struct config_key *key,
		      const struct json_value *value, const char *name)
{
	struct json_value text;
	const struct json_value *number = as_number(key, value, &text);
	uint64_t whole;

	if (key->suffix && value->type == JSON_STRING && strlen(value->string) == value->length &&
	    reader_with_suffix(value->string, &whole))
		return store_whole(r, key, value, name, whole);
	if (!number)
		return refuse_value(r, key, value, name, "");
	switch (json_read_whole(number, &whole)) {
	case JSON_FRACTION:
		return refuse_value(r, key, value, name, ", which is not a whole number");
	case JSON_NEGATIVE:
		return refuse_value(r, key, value, name, ", which is negative");
	case JSON_TOO_LARGE:
		return refuse_value(r, key, value, name, ", which is too large");
	case JSON_WHOLE:
		break;
	}
	return store_whole(r, key, value, name, whole);
}

/* A number, or the name of an environment variable: capitals, digits and underscores. */
static int read_rank(struct reader *r, const struct config_key *key, const struct json_value *value,
		     const char *name)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
	char *variable = r->config.rank_variable;

	if (value->type != JSON_STRING) {
		variable[0] = '\0';
		return read_whole(r, key, value, name);
	}
	if (!value->length || value->length >= sizeof(r->config.rank_variable) ||
	    strspn(value->string, allowed) != value->length || value->string[0] <= '9')
		return refuse_value(r, key, value, name, "");
	assert(value->length < sizeof(r->config.rank_variable));
	memcpy(variable, value->string, value->length + 1);
	r->config.rank = 0;
	return 0;
}

/* Reads a real number in [0, max], or in [0, max) if `open`. */
static int read_real(struct reader *r, const struct config_key *key, const struct json_value *value,
		     const char *name, double max, bool open, double *into)
{
	struct json_value text;
	const struct json_value *number = as_number(key, value, &text);
	double real = 0;
	int result;

	/* No norm exceeds it, so there is no clipping: 0. */
	if (value->type == JSON_NONFINITE && *value->raw == 'I' &&
	    key->place == offsetof(struct nvs_config, gradient_clipping)) {
		*into = 0;
		return 0;
	}
	if (!number)
		return refuse_value(r, key, value, name, "");
	result = json_read_real(number, &real);
	if (result == -ENOMEM)
		return error_set(r->error, result, "%s: out of memory", r->file);
	if (result)
		return refuse_value(r, key, value, name, ", which is out of the range of a double");
	if (real < 0)
		return refuse_value(r, key, value, name, ", which is negative");
	if (real > max || (open && real >= max))
		return refuse_value(r, key, value, name, ", which is too large");
	*into = real;
	return 0;
}

static int read_betas(struct reader *r, const struct config_key *key,
		      const struct json_value *value, const char *name)
{
	double *betas = place_of(r, key);
	int result;

	if (value->type != JSON_ARRAY)
		return refuse_value(r, key, value, name, "");
	if (value->count != 2) {
		char why[48];

		snprintf(why, sizeof(why), " of %u", value->count);
		return refuse_value(r, key, value, name, why);
	}
	result = read_real(r, key, value->first, name, 1, true, &betas[0]);
	return result ? result : read_real(r, key, value->first->next, name, 1, true, &betas[1]);
}

static int read_choice(struct reader *r, const struct config_key *key,
		       const struct json_value *value, const char *name)
{
	bool is_grad = key->place == offsetof(struct nvs_config, grad_accum_dtype);

	if (is_grad && value->type == JSON_NULL) {
		config_key_set_default(key, &r->config);
		return 0;
	}
	for (unsigned i = 0; i < key->choices->n; i++) {
		const char *choice = config_choice_name(key->choices, i);

		if (choice && json_is_string(value, choice)) {
			*(unsigned *)place_of(r, key) = i;
			r->grad_named |= is_grad;
			return 0;
		}
	}
	return refuse_value(r, key, value, name, "");
}

static int read_name(struct reader *r, const struct config_key *key, const struct json_value *value,
		     const char *name)
{
	char *into = place_of(r, key);

	if (value->type != JSON_STRING || value->length >= sizeof(r->config.adam.type) ||
	    strlen(value->string) != value->length)
		return refuse_value(r, key, value, name, "");
	memcpy(into, value->string, value->length + 1);
	return 0;
}

static int gather_paths(struct reader *r, const struct config_key *key,
			const struct json_value *value, const char *name, const char **paths)
{
	const struct json_value *item = value->type == JSON_ARRAY ? value->first : value;
	char shown[SHOWN_BYTES + 8], why[48];
	unsigned n = 0;

	if (value->type == JSON_ARRAY && (!value->count || value->count > NVS_PATHS_MAX)) {
		snprintf(why, sizeof(why), " of %u", value->count);
		return refuse_value(r, key, value, name, why);
	}
	for (; item; item = value->type == JSON_ARRAY ? item->next : NULL) {
		const char *flaw;

		if (item->type != JSON_STRING)
			return refuse_value(r, key, item, name, "");
		if (strlen(item->string) != item->length || item->lone_surrogate)
			return refuse_value(r, key, item, name, ", which is not a valid path");
		assert(n < NVS_PATHS_MAX);
		paths[n] = item->string;
		flaw = path_flaw(paths, n++);
		if (flaw)
			return reader_complain(r, &item->place, name, "%s: %s %s", name,
					       reader_show_value(item, shown), flaw);
	}
	return (int)n;
}

static int read_paths(struct reader *r, const struct config_key *key,
		      const struct json_value *value, const char *name)
{
	struct offload_config *offload = place_of(r, key);
	bool *fresh = &r->new_paths[offload - r->config.offload];
	const char *paths[NVS_PATHS_MAX];
	int n;

	if (value->type == JSON_NULL)
		return 0; /* as in DeepSpeed, the same as no key */
	n = gather_paths(r, key, value, name, paths);
	if (n < 0)
		return n;
	if (*fresh && key->block != BLOCK_NVSWAP)
		return 0; /* the nvswap block's are in its place */
	if (*fresh)
		paths_free(offload);
	*fresh = true;
	return paths_copy(offload, paths, (unsigned)n)
		       ? error_set(r->error, -ENOMEM, "%s: out of memory", r->file)
		       : 0;
}

/* true, false, 1 and 0; and in words where DeepSpeed takes those. */
static int read_bool(struct reader *r, const struct config_key *key, const struct json_value *value,
		     const char *name, bool *into)
{
	static const char *const words[][2] = {{"false", "true"}, {"off", "on"}, {"no", "yes"},
					       {"f", "t"},	  {"n", "y"},	 {"0", "1"}};
	uint64_t number = 2;

	if (value->type == JSON_TRUE || value->type == JSON_FALSE) {
		*into = value->type == JSON_TRUE;
		return 0;
	}
	if (value->type == JSON_NUMBER && json_read_whole(value, &number) == JSON_WHOLE &&
	    number <= 1) {
		*into = number;
		return 0;
	}
	for (size_t i = 0; i < 2 * COUNT_OF(words); i++) {
		const char *word = words[i / 2][i % 2];

		if (value->type == JSON_STRING && config_blocks[key->block].is_model &&
		    value->length == strlen(word) && !strcasecmp(value->string, word)) {
			*into = i % 2;
			return 0;
		}
	}
	return refuse_value(r, key, value, name, "");
}

static int read_value(struct reader *r, const struct config_key *key,
		      const struct json_value *value, const char *name)
{
	bool on = false;
	int result;

	switch (key->type) {
	case KEY_BOOL:
		return read_bool(r, key, value, name, place_of(r, key));
	case KEY_VERIFY:
		result = read_bool(r, key, value, name, &on);
		if (!result)
			*(enum verify *)place_of(r, key) = on ? VERIFY_ON : VERIFY_OFF;
		return result;
	case KEY_U32:
	case KEY_U64:
		return key->place == offsetof(struct nvs_config, rank)
			       ? read_rank(r, key, value, name)
			       : read_whole(r, key, value, name);
	case KEY_REAL:
		return read_real(r, key, value, name, key->real_max, false, place_of(r, key));
	case KEY_BETAS:
		return read_betas(r, key, value, name);
	case KEY_CHOICE:
		return read_choice(r, key, value, name);
	case KEY_NAME:
		return read_name(r, key, value, name);
	case KEY_PATHS:
		return read_paths(r, key, value, name);
	case KEY_BLOCK:
	case KEY_UNUSED:
		break;
	}
	assert(false);
	return -EINVAL;
}

/* The alias of this key that the file also sets, or NULL. */
static const struct config_key *other_name(const struct reader *r, const struct config_key *key)
{
	if (key->type != KEY_U32 && key->type != KEY_U64)
		return NULL;
	for (unsigned i = 0; i < config_key_count; i++)
		if (&config_keys[i] != key && config_keys[i].place == key->place &&
		    config_keys[i].type == key->type && r->seen[i])
			return &config_keys[i];
	return NULL;
}

static int read_setting(struct reader *r, const struct config_key *key,
			const struct json_value *value, const char *name)
{
	const struct config_key *other = other_name(r, key);
	uint64_t before = other ? whole_at(r, other) : 0;
	char text[NAME_BYTES + 96];
	int result = 0;

	if (json_is_string(value, "auto") && config_blocks[key->block].takes_auto &&
	    key->type != KEY_PATHS) {
		config_key_set_default(key, &r->config);
		snprintf(text, sizeof(text), "%s is \"auto\"; using the default, %s", name,
			 key->default_text ? key->default_text : "none");
		reader_say(r, NVS_LOG_INFO, &value->place, text);
	} else {
		result = read_value(r, key, value, name);
	}
	if (result)
		return result;
	r->seen[key - config_keys] = value;
	if (other && whole_at(r, other) != before)
		return reader_complain(
			r, &value->place, name,
			"%s is %llu, but its alias `%s` is %llu on line %u; remove one of them",
			name, (unsigned long long)whole_at(r, key), other->name,
			(unsigned long long)before, r->seen[other - config_keys]->place.line);
	return 0;
}

static int read_block(struct reader *r, enum config_block block, const struct json_value *object,
		      const char *path);

static int read_member(struct reader *r, enum config_block block, const struct json_value *member,
		       const char *path)
{
	const struct config_key *key = config_key_find(block, member->key, member->key_length);
	char name[NAME_BYTES], shown[SHOWN_BYTES + 8], text[256 + NAME_BYTES];

	snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
		 reader_show(member->key, member->key_length, shown));
	if (!key && config_blocks[block].strict)
		return reader_complain(
			r, &member->key_place, name, "%s is not a key of `%s`; %s", name,
			config_blocks[block].name,
			config_key_suggest(block, member->key, member->key_length, text));
	if (!key)
		return 0;
	if (key->type == KEY_BLOCK) {
		const struct json_value *first = r->blocks[key->child];

		if (member->type == JSON_NULL)
			return 0; /* as in DeepSpeed, the same as no block */
		if (key->child == BLOCK_ZERO &&
		    (member->type == JSON_TRUE || member->type == JSON_FALSE)) {
			snprintf(text, sizeof(text),
				 "%s has been an object since DeepSpeed 0.3; true and false "
				 "offload nothing",
				 name);
			reader_say(r, NVS_LOG_WARNING, &member->place, text);
			return 0;
		}
		if (member->type != JSON_OBJECT)
			return refuse_value(r, key, member, name, "");
		if (first)
			return reader_complain(
				r, &member->key_place, name,
				"%s is the same block as `%.*s` on line %u; remove one of them",
				name, (int)first->key_length, first->key, first->key_place.line);
		r->blocks[key->child] = member;
		return read_block(r, key->child, member, name);
	}
	if (key->type == KEY_UNUSED) {
		snprintf(text, sizeof(text), "%s has no effect in nvswap: %s", name, key->meaning);
		reader_say(r, NVS_LOG_WARNING, &member->key_place, text);
		return 0;
	}
	return read_setting(r, key, member, name);
}

/* `path` is the block's path in the file: "zero_optimization.offload_param", "" for the top. */
static int read_block(struct reader *r, enum config_block block, const struct json_value *object,
		      const char *path)
{
	const struct json_value *twice = object->duplicate, *member;
	char name[NAME_BYTES], shown[SHOWN_BYTES + 8];

	if (twice) {
		snprintf(name, sizeof(name), "%s%s%s", path, *path ? "." : "",
			 reader_show(twice->key, twice->key_length, shown));
		return reader_complain(r, &twice->key_place, name,
				       "%s is already set on line %u; remove one of them", name,
				       twice->earlier->key_place.line);
	}
	for (member = object->first; member; member = member->next) {
		int result = read_member(r, block, member, path);

		if (result)
			return result;
	}
	return 0;
}

int reader_set(struct reader *r, const struct config_key *key, const struct json_value *value,
	       const char *name)
{
	const struct nvs_config before = r->config;
	int result = read_setting(r, key, value, name);

	return result ? result : rules_apply(r, &before);
}

int reader_set_number(struct reader *r, const struct config_key *key, uint64_t number,
		      const char *name)
{
	const struct nvs_config before = r->config;
	struct json_value value = {.type = JSON_NUMBER}; /* for messages */
	char text[32];
	int result = 0;

	value.raw = text;
	value.raw_length = (size_t)snprintf(text, sizeof(text), "%" PRIu64, number);
	r->seen[key - config_keys] = &value;
	switch (key->type) {
	case KEY_BOOL:
		*(bool *)place_of(r, key) = number;
		break;
	case KEY_VERIFY:
		*(enum verify *)place_of(r, key) = number ? VERIFY_ON : VERIFY_OFF;
		break;
	case KEY_CHOICE:
		*(unsigned *)place_of(r, key) = (unsigned)number;
		break;
	case KEY_REAL:
		*(double *)place_of(r, key) = (double)number;
		break;
	default:
		if (key->place == offsetof(struct nvs_config, rank))
			r->config.rank_variable[0] = '\0';
		result = store_whole(r, key, &value, name, number);
	}
	if ((key->type == KEY_REAL && (double)number > key->real_max) ||
	    ((key->type == KEY_BOOL || key->type == KEY_VERIFY) && number > 1) ||
	    (key->type == KEY_CHOICE && !config_choice_name(key->choices, number)))
		result = refuse_value(r, key, &value, name, "");
	return result ? result : rules_apply(r, &before);
}

int reader_read(struct reader *r, const struct json_value *root)
{
	const struct nvs_config before = r->config;
	bool strict = r->config.strict; /* a program's choice, which no file takes back */
	char shown[SHOWN_BYTES + 8];
	int result;

	if (root->type != JSON_OBJECT)
		return reader_complain(r, &root->place, NULL,
				       "the document is %s; it must be an object: a DeepSpeed "
				       "configuration or some of its blocks",
				       reader_show_value(root, shown));
	result = read_block(r, BLOCK_ROOT, root, "");
	r->config.strict |= strict;
	if (!result)
		result = misplaced_report(r, root, r->config.strict);
	return result ? result : rules_apply(r, &before);
}

/* For the blocks whose paths the file sets, frees those of `config`: the copy on failure, the
 * caller's configuration on success. */
static void drop_paths(const struct reader *r, struct nvs_config *config)
{
	for (int i = NVS_OFFLOAD_PARAM; i <= NVS_OFFLOAD_OPTIMIZER; i++)
		if (r->new_paths[i])
			paths_free(&config->offload[i]);
}

int reader_take(struct reader *r, struct nvs_config *config, int result)
{
	if (result) {
		drop_paths(r, &r->config);
		return result;
	}
	drop_paths(r, config);
	*config = r->config;
	return 0;
}
