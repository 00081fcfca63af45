/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a choice into the text of a configuration: replaces the values that differ, adds what is
 * missing in the indentation of the file, and copies every other byte. The new text is only
 * returned after the library has read the choice from it.
 */
#include "cli/tune/tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json/read.h"
#include "cli/settings.h"

#define SETTINGS 6

/* A setting to be written. */
struct setting {
	const char *block, *key;
	const char *alias; /* another name of the key; NULL: none */
	char value[24];
	bool wanted; /* false: leave the key unchanged */
	bool is_so;  /* the file has this value already, in any notation */
};

struct edit {
	const char *from; /* next byte to copy */
	FILE *out;
	const struct json_value *root;
	struct setting settings[SETTINGS];
};

/* Whitespace between the members of an object. */
struct style {
	const char *lead; /* before a key: a line end and indentation, or a space */
	int lead_length;
	const char *gap; /* between a key and its value */
	int gap_length;
};

/* ---- Settings ---- */

static uint64_t aio_setting(const struct nvs_config *config, const char *key)
{
	char text[64];

	snprintf(text, sizeof(text), "aio.%s", key);
	return setting_number(config, text);
}

static struct setting number(const char *key, uint32_t value, const struct nvs_config *before)
{
	struct setting setting = {"aio", key, NULL, "", true, value == aio_setting(before, key)};

	snprintf(setting.value, sizeof(setting.value), "%u", value);
	return setting;
}

static struct setting flag(const char *key, bool value, const struct nvs_config *before)
{
	struct setting setting = {"aio", key, NULL, "", true, value == aio_setting(before, key)};

	strcpy(setting.value, value ? "true" : "false");
	return setting;
}

/* An engine named in the file is replaced by the choice's, even if auto would take that one. */
static void make_settings(struct edit *edit, const struct tune_point *point,
			  const struct nvs_config *before, bool name_ioengine)
{
	enum nvs_ioengine named = setting_ioengine(before);
	struct setting *s = edit->settings;

	s[0] = number("block_size", point->block_size, before);
	s[1] = number("queue_depth", point->queue_depth, before);
	s[2] = number("thread_count", point->thread_count, before);
	s[2].alias = "intra_op_parallelism";
	s[3] = flag("single_submit", point->single_submit, before);
	s[4] = flag("overlap_events", point->overlap_events, before);
	s[5] = (struct setting){"nvswap", "ioengine", NULL, "", false, false};
	s[5].wanted = named != point->ioengine && (name_ioengine || named != NVS_IOENGINE_AUTO);
	snprintf(s[5].value, sizeof(s[5].value), "\"%s\"", nvs_ioengine_name(point->ioengine));
}

static bool is_missing(const struct edit *edit, const struct setting *setting, const char *block)
{
	const struct json_value *object = json_member(edit->root, block);

	return setting->wanted && !strcmp(setting->block, block) &&
	       !json_member(object, setting->key) &&
	       !(setting->alias && json_member(object, setting->alias));
}

static bool needs_block(const struct edit *edit, const char *block)
{
	return !json_member(edit->root, block) &&
	       (!strcmp(block, "aio") || edit->settings[5].wanted);
}

/* ---- Style ---- */

static const char *end_of(const struct json_value *value)
{
	return value->raw + value->raw_length;
}

static const struct json_value *last_of(const struct json_value *object)
{
	const struct json_value *last = object->first;

	while (last && last->next)
		last = last->next;
	return last;
}

static struct style style_of_empty(const struct json_value *object)
{
	const char *line = memchr(object->raw, '\n', object->raw_length);
	struct style style = {!line ? " " : line[-1] == '\r' ? "\r\n  " : "\n  ", 0, ": ", 2};

	style.lead_length = (int)strlen(style.lead);
	return style;
}

static struct style style_of(const struct json_value *object)
{
	const struct json_value *last = last_of(object);
	struct style style;
	const char *begin, *line;

	if (!last)
		return style_of_empty(object);
	begin = last->key_raw;
	while (strchr(" \t\r\n", begin[-1]))
		begin--;
	line = memrchr(begin, '\n', (size_t)(last->key_raw - begin));
	if (line) /* without blank lines before it */
		begin = line > begin && line[-1] == '\r' ? line - 1 : line;
	style = (struct style){begin, (int)(last->key_raw - begin), last->raw, 0};
	while (strchr(" \t\r\n:", style.gap[-1]))
		style.gap--;
	style.gap_length = (int)(last->raw - style.gap);
	if (!memchr(style.gap, ':', (size_t)style.gap_length)) { /* a comment stands there */
		style.gap = ": ";
		style.gap_length = 2;
	}
	/* An only member follows the brace; members behind a comma can have other spacing. */
	if (object->count == 1 && !line) {
		style.lead = " ";
		style.lead_length = memchr(style.gap, ' ', (size_t)style.gap_length) != NULL;
	}
	return style;
}

/* ---- Writing ---- */

static void copy_up_to(struct edit *edit, const char *to)
{
	fwrite(edit->from, 1, (size_t)(to - edit->from), edit->out);
	edit->from = to;
}

static void replace(struct edit *edit, const struct json_value *value, const char *text)
{
	copy_up_to(edit, value->raw);
	fputs(text, edit->out);
	edit->from = end_of(value);
}

static void put_lead(const struct edit *edit, const struct style *style)
{
	fprintf(edit->out, "%.*s", style->lead_length, style->lead);
}

static void put_key(const struct edit *edit, const char *key, const struct style *style)
{
	fprintf(edit->out, "\"%s\"%.*s", key, style->gap_length, style->gap);
}

/* Writes the members of a missing block, in the style of its parent object. */
static void put_members(const struct edit *edit, const char *block, const struct style *style)
{
	const char *line = memrchr(style->lead, '\n', (size_t)style->lead_length);
	const char *indent = line ? line + 1 : "";
	int indent_length = line ? (int)(style->lead + style->lead_length - indent) : 0;
	bool first = true;

	for (unsigned i = 0; i < SETTINGS; i++) {
		if (!is_missing(edit, &edit->settings[i], block))
			continue;
		fputs(first ? "" : ",", edit->out);
		if (line || !first)
			put_lead(edit, style);
		if (line)
			fprintf(edit->out, "%.*s", indent_length ? indent_length : 2,
				indent_length ? indent : "  ");
		put_key(edit, edit->settings[i].key, style);
		fputs(edit->settings[i].value, edit->out);
		first = false;
	}
}

static void put_block(const struct edit *edit, const char *block, const struct style *style)
{
	fputc('{', edit->out);
	put_members(edit, block, style);
	if (memchr(style->lead, '\n', (size_t)style->lead_length))
		put_lead(edit, style);
	fputc('}', edit->out);
}

/* Whether comments, which stay, are all that the object has. */
static bool has_comment(const struct json_value *object)
{
	for (size_t i = 1; object->type == JSON_OBJECT && i + 1 < object->raw_length; i++)
		if (!strchr(" \t\r\n", object->raw[i]))
			return true;
	return false;
}

static void replace_value(struct edit *edit, const char *block, const struct json_value *value)
{
	for (unsigned i = 0; i < SETTINGS; i++) {
		const struct setting *setting = &edit->settings[i];

		if (setting->wanted && !setting->is_so && !strcmp(setting->block, block) &&
		    (!strcmp(setting->key, value->key) ||
		     (setting->alias && !strcmp(setting->alias, value->key))))
			replace(edit, value, setting->value);
	}
}

static void edit_members(struct edit *edit, const struct json_value *object)
{
	struct style style = style_of(object);

	for (const struct json_value *value = object->first; value; value = value->next)
		replace_value(edit, object->key, value);
	copy_up_to(edit, end_of(last_of(object)));
	for (unsigned i = 0; i < SETTINGS; i++) {
		if (!is_missing(edit, &edit->settings[i], object->key))
			continue;
		fputc(',', edit->out);
		put_lead(edit, &style);
		put_key(edit, edit->settings[i].key, &style);
		fputs(edit->settings[i].value, edit->out);
	}
}

/* Edits the members of an existing block; replaces {} and null. */
static void edit_block(struct edit *edit, const struct json_value *block)
{
	struct style style = style_of(edit->root);

	if (strcmp(block->key, "aio") != 0 &&
	    (strcmp(block->key, "nvswap") != 0 || !edit->settings[5].wanted))
		return;
	if (block->count) {
		edit_members(edit, block);
		return;
	}
	if (has_comment(block)) {
		copy_up_to(edit, block->raw + 1);
		put_members(edit, block->key, &style);
		return;
	}
	replace(edit, block, "");
	put_block(edit, block->key, &style);
}

static void add_blocks(struct edit *edit)
{
	static const char *const blocks[] = {"aio", "nvswap"};
	const struct json_value *root = edit->root;
	struct style style = style_of(root);
	bool first = !root->count;

	copy_up_to(edit, root->count ? end_of(last_of(root)) : root->raw + 1);
	for (unsigned i = 0; i < 2; i++) {
		if (!needs_block(edit, blocks[i]))
			continue;
		fputs(first ? "" : ",", edit->out);
		if (!first || *style.lead != ' ')
			put_lead(edit, &style);
		put_key(edit, blocks[i], &style);
		put_block(edit, blocks[i], &style);
		first = false;
	}
}

static int write_text(struct edit *edit, const char *end, char **out, size_t *out_nbytes)
{
	edit->out = open_memstream(out, out_nbytes);
	if (!edit->out)
		return -ENOMEM;
	for (const struct json_value *value = edit->root->first; value; value = value->next)
		edit_block(edit, value);
	add_blocks(edit);
	copy_up_to(edit, end);
	if (!fclose(edit->out))
		return 0;
	free(*out);
	return -ENOMEM;
}

/* ---- The edit ---- */

static bool is_of_point(const struct nvs_config *config, const struct tune_point *point)
{
	return setting_number(config, "aio.block_size") == point->block_size &&
	       setting_number(config, "aio.queue_depth") == point->queue_depth &&
	       setting_number(config, "aio.thread_count") == point->thread_count &&
	       setting_number(config, "aio.single_submit") == point->single_submit &&
	       setting_number(config, "aio.overlap_events") == point->overlap_events;
}

static int parse(struct nvs_config **config, const char *text, size_t nbytes, const char *name,
		 struct nvs_error *error)
{
	int rc = nvs_config_open(config, error);

	if (rc)
		return rc;
	rc = nvs_config_set(*config, "nvswap.strict", "true", error);
	if (!rc)
		rc = nvs_config_parse(*config, text, nbytes, name, error);
	if (rc)
		nvs_config_close(*config);
	return rc;
}

/* The library must read the choice from the new text. */
static int verify(const struct tune_point *point, enum nvs_ioengine ioengine, const char *text,
		  size_t nbytes, const char *name, struct nvs_error *error)
{
	struct nvs_config *config;
	bool good;
	int rc = parse(&config, text, nbytes, name, error);

	if (rc)
		return rc;
	good = is_of_point(config, point) && setting_ioengine(config) == ioengine;
	nvs_config_close(config);
	if (good)
		return 0;
	*error = (struct nvs_error){.size = sizeof(*error), .code = -EINVAL};
	snprintf(error->text, sizeof(error->text),
		 "%.200s: can't put the settings into it; put them there by hand", name);
	return -EINVAL;
}

/* The text with the settings of `edit`, into *out. */
static int edit_text(struct edit *edit, const char *text, size_t nbytes, const char *name,
		     char **out, size_t *out_nbytes, struct nvs_error *error)
{
	struct json_document *document;
	int rc = json_parse_relaxed(&document, text, nbytes, name, SIZE_MAX, error);

	if (rc)
		return rc;
	edit->root = json_root(document);
	rc = write_text(edit, text + nbytes, out, out_nbytes);
	json_free(document);
	if (rc) {
		*error = (struct nvs_error){.size = sizeof(*error), .code = rc};
		snprintf(error->text, sizeof(error->text), "%.200s: can't be edited: %s", name,
			 nvs_strerror(rc));
	}
	return rc;
}

int tune_edit(const char *text, size_t nbytes, const char *name, const struct tune_point *point,
	      bool name_ioengine, char **out, size_t *out_nbytes, struct nvs_error *error)
{
	struct edit edit = {.from = text};
	struct nvs_config *before;
	enum nvs_ioengine named;
	int rc = parse(&before, text, nbytes, name, error);

	if (rc)
		return rc;
	named = setting_ioengine(before);
	make_settings(&edit, point, before, name_ioengine);
	nvs_config_close(before);
	rc = edit_text(&edit, text, nbytes, name, out, out_nbytes, error);
	if (rc)
		return rc;
	rc = verify(point, edit.settings[5].wanted ? point->ioengine : named, *out, *out_nbytes,
		    name, error);
	if (rc) {
		free(*out);
		*out = NULL;
	}
	return rc;
}
