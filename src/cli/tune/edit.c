/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a choice into the text of a configuration, member by member: replaces values that differ,
 * adds what is missing in the indentation of the block, and copies every other byte. The new text is
 * only returned after the library has read the choice from it.
 */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json/read.h"
#include "cli/settings.h"
#include "cli/tune/tune.h"

#define BLANKS " \t\r\n"

/* A member of a block, or of the whole if `block` is NULL. */
struct member {
	const char *block, *key, *value;
	const char *unless; /* it is not added if there is a member of this name; NULL: none */
	bool stays;	    /* the value that is there has the meaning of the new one */
};

/* Whether there is nothing in it, not even a comment. */
static bool is_blank(const struct json_value *value)
{
	return value->type == JSON_NULL || (value->type == JSON_OBJECT &&
					    value->raw[1 + strspn(value->raw + 1, BLANKS)] == '}');
}

/* Writes the member behind the last one of the object, on a line of its own if that has one. */
static void add_member(FILE *out, const struct json_value *object, const struct member *member)
{
	const struct json_value *last = object->first;
	const char *lead, *line;

	while (last && last->next)
		last = last->next;
	if (last) {
		for (lead = last->key_raw; strchr(BLANKS, lead[-1]);)
			lead--;
		line = memrchr(lead, '\n', (size_t)(last->key_raw - lead));
		if (line) /* without blank lines before it */
			lead = line > lead && line[-1] == '\r' ? line - 1 : line;
		fprintf(out, ",%.*s", line ? (int)(last->key_raw - lead) : 1, line ? lead : " ");
	}
	fprintf(out, "\"%s\": %s", member->key, member->value);
}

/* Replaces or adds the member, where that is needed. */
static int set_member(struct tune_text *text, const char *name, const struct member *member,
		      struct nvs_error *error)
{
	const struct json_value *root, *object, *value;
	struct tune_text edited = {0};
	struct json_document *document;
	const char *from;
	FILE *out;
	int rc = json_parse_relaxed(&document, text->bytes, text->nbytes, name, SIZE_MAX, error);

	if (rc)
		return rc;
	root = json_root(document);
	object = member->block ? json_member(root, member->block) : root;
	value = json_member(object, member->key);
	if (value ? member->stays || (!member->block && !is_blank(value))
		  : member->unless && json_member(object, member->unless)) {
		json_free(document);
		return 0;
	}
	from = value ? value->raw : object->raw + 1;
	for (const struct json_value *each = object->first; each && !value; each = each->next)
		from = each->raw + each->raw_length;
	out = open_memstream(&edited.bytes, &edited.nbytes);
	if (out) {
		fwrite(text->bytes, 1, (size_t)(from - text->bytes), out);
		if (value) {
			fputs(member->value, out);
			from += value->raw_length;
		} else {
			add_member(out, object, member);
		}
		fwrite(from, 1, (size_t)(text->bytes + text->nbytes - from), out);
	}
	json_free(document);
	if (!out || fclose(out)) {
		free(edited.bytes);
		return error_set(error, -ENOMEM, "%.200s: can't be edited: out of memory", name);
	}
	free(text->bytes);
	*text = edited;
	return 0;
}

static int parse(struct nvs_config **config, const struct tune_text *text, const char *name,
		 struct nvs_error *error)
{
	int rc = nvs_config_open(config, error);

	if (rc)
		return rc;
	rc = nvs_config_set(*config, "nvswap.strict", "true", error);
	if (!rc)
		rc = nvs_config_parse(*config, text->bytes, text->nbytes, name, error);
	if (rc)
		nvs_config_close(*config);
	return rc;
}

int tune_edit(struct tune_text *text, const char *name, const struct tune_point *point,
	      bool name_ioengine, enum nvs_ioengine *named, struct nvs_error *error)
{
	struct tune_setting settings[TUNE_SETTINGS];
	char values[TUNE_SETTINGS][24], quoted[32];
	struct member members[TUNE_SETTINGS + 4] = {{NULL, "aio", "{}", NULL, false}};
	struct nvs_config *config;
	enum nvs_ioengine due;
	unsigned n = 1;
	bool good;
	int rc = parse(&config, text, name, error);

	if (rc)
		return rc;
	*named = setting_ioengine(config);
	tune_settings(point, settings);
	for (unsigned i = 0; i < TUNE_SETTINGS; i++) {
		snprintf(values[i], sizeof(values[i]), "%u", settings[i].value);
		if (settings[i].is_flag)
			strcpy(values[i], settings[i].value ? "true" : "false");
		members[n++] = (struct member){"aio", settings[i].key + 4, values[i], NULL,
					       setting_number(config, settings[i].key) ==
						       settings[i].value};
		if (strcmp(settings[i].key, "aio.thread_count") != 0)
			continue;
		/* Of its two names, those that are there; or the first. */
		members[n] = members[n - 1];
		members[n - 1].unless = members[n].key = "intra_op_parallelism";
		members[n++].unless = "thread_count";
	}
	nvs_config_close(config);
	/* An engine named in the file is replaced by the choice's, even if auto would take it. */
	due = name_ioengine || *named != NVS_IOENGINE_AUTO ? point->ioengine : *named;
	snprintf(quoted, sizeof(quoted), "\"%s\"", nvs_ioengine_name(due));
	if (due != *named) {
		members[n++] = (struct member){NULL, "nvswap", "{}", NULL, false};
		members[n++] = (struct member){"nvswap", "ioengine", quoted, NULL, false};
	}
	for (unsigned i = 0; i < n && !rc; i++)
		rc = set_member(text, name, &members[i], error);
	if (!rc)
		rc = parse(&config, text, name, error);
	if (rc)
		return rc;
	good = setting_ioengine(config) == due;
	for (unsigned i = 0; i < TUNE_SETTINGS; i++)
		good &= setting_number(config, settings[i].key) == settings[i].value;
	nvs_config_close(config);
	return good ? 0
		    : error_set(error, -EINVAL,
				"%.200s: can't put the settings into it; put them there by hand",
				name);
}
