/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a configuration with a choice put in: values that differ are replaced, keys and
 * blocks that are missing are added in the indentation of the file, all else is copied. The new
 * text is handed out only after the library has read the choice from it.
 */
#include "tune.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "json_layout.h"

enum { AIO, NVSWAP, BLOCKS };
enum {
	BLOCK_SIZE,
	QUEUE_DEPTH,
	THREAD_COUNT,
	INTRA_OP_PARALLELISM,
	SINGLE_SUBMIT,
	OVERLAP_EVENTS,
	AIO_KEYS
};

static const char *const block_names[] = {[AIO] = "aio", [NVSWAP] = "nvswap", NULL};
static const char *const aio_keys[] = {[BLOCK_SIZE] = "block_size",
				       [QUEUE_DEPTH] = "queue_depth",
				       [THREAD_COUNT] = "thread_count",
				       [INTRA_OP_PARALLELISM] = "intra_op_parallelism",
				       [SINGLE_SUBMIT] = "single_submit",
				       [OVERLAP_EVENTS] = "overlap_events",
				       NULL};
static const char *const nvswap_keys[] = {"ioengine", NULL};

/* What stands in place of `old`, which is empty where something is added. */
struct splice {
	struct json_span old;
	char *text;
};

/* Every value of the two blocks, and an addition to each of three objects. */
#define SPLICES_MAX (AIO_KEYS + 1 + BLOCKS + 1)

struct edit {
	const char *text;
	struct json_layout layout;
	struct json_object blocks[BLOCKS];
	const struct tune_point *point;
	struct nvs_config before;
	bool set_ioengine;
	struct splice splices[SPLICES_MAX];
	unsigned n;
	bool no_memory;
};

/* How an object's members are set apart. */
struct style {
	const char *lead; /* what stands before a key, a line end and indentation or a blank */
	int lead_length;
	const char *gap; /* from a key to its value */
	int gap_length;
};

static const char *value_text(const struct edit *edit, unsigned block, unsigned key, char text[24])
{
	const struct tune_point *point = edit->point;

	if (block == NVSWAP) {
		snprintf(text, 24, "\"%s\"", nvs_ioengine_name(point->ioengine));
		return text;
	}
	if (key == SINGLE_SUBMIT)
		return point->single_submit ? "true" : "false";
	if (key == OVERLAP_EVENTS)
		return point->overlap_events ? "true" : "false";
	snprintf(text, 24, "%" PRIu32,
		 key == BLOCK_SIZE    ? point->block_size
		 : key == QUEUE_DEPTH ? point->queue_depth
				      : point->thread_count);
	return text;
}

/* Whether the file gives that key its value already, in whatever way it writes it. */
static bool is_so(const struct edit *edit, unsigned block, unsigned key)
{
	const struct nvs_aio_config *aio = &edit->before.aio;
	const struct tune_point *point = edit->point;

	if (block == NVSWAP)
		return !edit->set_ioengine;
	switch (key) {
	case BLOCK_SIZE:
		return aio->block_size == point->block_size;
	case QUEUE_DEPTH:
		return aio->queue_depth == point->queue_depth;
	case SINGLE_SUBMIT:
		return aio->single_submit == point->single_submit;
	case OVERLAP_EVENTS:
		return aio->overlap_events == point->overlap_events;
	default:
		return aio->thread_count == point->thread_count;
	}
}

static bool is_there(const struct edit *edit, unsigned block, unsigned key)
{
	return edit->blocks[block].values[key].end;
}

/* Whether the block needs a key that it does not have. */
static bool is_missing(const struct edit *edit, unsigned block, unsigned key)
{
	if (is_there(edit, block, key))
		return false;
	if (block == NVSWAP)
		return edit->set_ioengine;
	if (key == THREAD_COUNT)
		return !is_there(edit, block, INTRA_OP_PARALLELISM);
	return key != INTRA_OP_PARALLELISM;
}

static struct style style_of(const struct edit *edit, const struct json_object *object)
{
	struct style style = {"", 0, ": ", 2};
	const char *key, *begin, *line;

	if (!object->members) {
		/* Between braces on lines of their own; else on one line. */
		line = memchr(edit->text + object->text.at, '\n',
			      object->text.end - object->text.at);
		style.lead = !line ? " " : line[-1] == '\r' ? "\r\n  " : "\n  ";
		style.lead_length = (int)strlen(style.lead);
		return style;
	}
	key = begin = edit->text + object->last_key.at;
	while (strchr(" \t\r\n", begin[-1]))
		begin--;
	line = memrchr(begin, '\n', (size_t)(key - begin));
	if (line) /* Blank lines before it are not its own. */
		begin = line > begin && line[-1] == '\r' ? line - 1 : line;
	style.lead = begin;
	style.lead_length = (int)(key - begin);
	style.gap = edit->text + object->last_key.end;
	style.gap_length = (int)(object->last_value.at - object->last_key.end);
	/* What stands before the only key of a line may not be what stands behind a comma. */
	if (object->members == 1 && !line) {
		style.lead = " ";
		style.lead_length = memchr(style.gap, ' ', (size_t)style.gap_length) != NULL;
	}
	return style;
}

static const char *const *keys_of(unsigned block)
{
	return block == AIO ? aio_keys : nvswap_keys;
}

static void print_member(FILE *out, const struct edit *edit, unsigned block, unsigned key,
			 const struct style *style)
{
	char text[24];

	fprintf(out, "\"%s\"%.*s%s", keys_of(block)[key], style->gap_length, style->gap,
		value_text(edit, block, key, text));
}

/* A whole block, as a member of an object in that style; or its value alone. */
static void print_block(FILE *out, const struct edit *edit, unsigned block,
			const struct style *style)
{
	const char *indent = memrchr(style->lead, '\n', (size_t)style->lead_length);
	int indent_length = 0;
	bool first = true;

	if (indent) {
		indent++;
		indent_length = (int)(style->lead + style->lead_length - indent);
	}
	fputc('{', out);
	for (unsigned key = 0; keys_of(block)[key]; key++) {
		if (!is_missing(edit, block, key))
			continue;
		if (!first)
			fputc(',', out);
		if (indent)
			fprintf(out, "%.*s%.*s", style->lead_length, style->lead,
				indent_length ? indent_length : 2, indent_length ? indent : "  ");
		else if (!first)
			fprintf(out, "%.*s", style->lead_length, style->lead);
		print_member(out, edit, block, key, style);
		first = false;
	}
	if (indent)
		fprintf(out, "%.*s", style->lead_length, style->lead);
	fputc('}', out);
}

/* A text that is printed piece by piece, then put in place of another. */
struct printed {
	FILE *out;
	char *text;
	size_t nbytes;
};

static bool print_begin(struct edit *edit, struct printed *printed)
{
	*printed = (struct printed){0};
	printed->out = open_memstream(&printed->text, &printed->nbytes);
	edit->no_memory |= !printed->out;
	return printed->out;
}

static void print_end(struct edit *edit, struct printed *printed, size_t at, size_t end)
{
	if (fclose(printed->out)) {
		free(printed->text);
		edit->no_memory = true;
		return;
	}
	assert(edit->n < SPLICES_MAX);
	edit->splices[edit->n++] = (struct splice){{at, end}, printed->text};
}

static void replace_values(struct edit *edit, unsigned block)
{
	struct printed printed;
	char text[24];

	for (unsigned key = 0; keys_of(block)[key]; key++) {
		struct json_span value = edit->blocks[block].values[key];

		if (!is_there(edit, block, key) || is_so(edit, block, key) ||
		    !print_begin(edit, &printed))
			continue;
		fputs(value_text(edit, block, key, text), printed.out);
		print_end(edit, &printed, value.at, value.end);
	}
}

static bool lacks_keys(const struct edit *edit, unsigned block)
{
	for (unsigned key = 0; keys_of(block)[key]; key++)
		if (is_missing(edit, block, key))
			return true;
	return false;
}

static void add_keys(struct edit *edit, unsigned block)
{
	const struct json_object *object = &edit->blocks[block];
	struct style style = style_of(edit, object);
	struct printed printed;

	if (!lacks_keys(edit, block) || !print_begin(edit, &printed))
		return;
	for (unsigned key = 0; keys_of(block)[key]; key++) {
		if (!is_missing(edit, block, key))
			continue;
		fprintf(printed.out, ",%.*s", style.lead_length, style.lead);
		print_member(printed.out, edit, block, key, &style);
	}
	print_end(edit, &printed, object->last_value.end, object->last_value.end);
}

static bool needs_block(const struct edit *edit, unsigned block)
{
	return block == AIO || edit->set_ioengine;
}

/* A block that is there: its members are edited; {} and null are replaced. */
static void edit_block(struct edit *edit, unsigned block)
{
	struct style style = style_of(edit, &edit->layout.root);
	struct json_span value = edit->layout.root.values[block];
	struct printed printed;

	if (edit->blocks[block].members) {
		replace_values(edit, block);
		add_keys(edit, block);
	} else if (print_begin(edit, &printed)) {
		print_block(printed.out, edit, block, &style);
		print_end(edit, &printed, value.at, value.end);
	}
}

static void add_blocks(struct edit *edit)
{
	const struct json_object *root = &edit->layout.root;
	size_t at = root->members ? root->last_value.end : root->text.at + 1;
	struct style style = style_of(edit, root);
	bool first = !root->members;
	struct printed printed;

	if (!print_begin(edit, &printed))
		return;
	for (unsigned block = 0; block < BLOCKS; block++) {
		if (root->values[block].end || !needs_block(edit, block))
			continue;
		if (!first)
			fputc(',', printed.out);
		if (!first || *style.lead != ' ')
			fprintf(printed.out, "%.*s", style.lead_length, style.lead);
		fprintf(printed.out, "\"%s\"%.*s", block_names[block], style.gap_length, style.gap);
		print_block(printed.out, edit, block, &style);
		first = false;
	}
	print_end(edit, &printed, at, at);
}

static int by_place(const void *left, const void *right)
{
	const struct splice *a = left, *b = right;

	return (a->old.at > b->old.at) - (a->old.at < b->old.at);
}

static int join(struct edit *edit, size_t nbytes, char **out, size_t *out_nbytes)
{
	size_t room = nbytes, from = 0, used = 0;
	char *text;

	qsort(edit->splices, edit->n, sizeof(*edit->splices), by_place);
	for (unsigned i = 0; i < edit->n; i++)
		room += strlen(edit->splices[i].text);
	text = malloc(room + 1);
	if (!text)
		return -ENOMEM;
	for (unsigned i = 0; i <= edit->n; i++) {
		const struct splice *next = i < edit->n ? &edit->splices[i] : NULL;
		size_t to = next ? next->old.at : nbytes;

		assert(to >= from && to <= nbytes);
		memcpy(text + used, edit->text + from, to - from);
		used += to - from;
		if (!next)
			break;
		memcpy(text + used, next->text, strlen(next->text));
		used += strlen(next->text);
		from = next->old.end;
	}
	text[used] = '\0';
	*out = text;
	*out_nbytes = used;
	return 0;
}

/* That the library reads the choice from the new text, before anything relies on it. */
static int verify(const struct edit *edit, const char *text, size_t nbytes, const char *name,
		  struct nvs_error *error)
{
	const struct tune_point *point = edit->point;
	enum nvs_ioengine ioengine = edit->set_ioengine ? point->ioengine
							: edit->before.aio.ioengine;
	struct nvs_config config;
	bool good;
	int rc;

	nvs_config_init(&config);
	rc = nvs_config_parse(&config, text, nbytes, name, error);
	good = !rc && config.aio.block_size == point->block_size &&
	       config.aio.queue_depth == point->queue_depth &&
	       config.aio.thread_count == point->thread_count &&
	       config.aio.single_submit == point->single_submit &&
	       config.aio.overlap_events == point->overlap_events &&
	       config.aio.ioengine == ioengine;
	nvs_config_free(&config);
	if (rc || good)
		return rc;
	*error = (struct nvs_error){.code = -EINVAL};
	snprintf(error->text, sizeof(error->text),
		 "%.200s: the settings can't be put into it; put them there by hand", name);
	return -EINVAL;
}

static int make_edit(struct edit *edit, size_t nbytes, char **out, size_t *out_nbytes)
{
	bool add = false;
	int rc = json_layout(&edit->layout, edit->text, nbytes);

	if (rc)
		return rc;
	for (unsigned block = 0; block < BLOCKS; block++) {
		if (!needs_block(edit, block))
			continue;
		if (edit->layout.root.values[block].end)
			edit_block(edit, block);
		else
			add = true;
	}
	if (add)
		add_blocks(edit);
	rc = edit->no_memory ? -ENOMEM : join(edit, nbytes, out, out_nbytes);
	for (unsigned i = 0; i < edit->n; i++)
		free(edit->splices[i].text);
	return rc;
}

/* An engine that the file names is replaced by another choice, also where auto would take it. */
static bool sets_ioengine(enum nvs_ioengine named, const struct tune_point *point,
			  bool name_ioengine)
{
	return named != point->ioengine && (name_ioengine || named != NVS_IOENGINE_AUTO);
}

int tune_edit(const char *text, size_t nbytes, const char *name, const struct tune_point *point,
	      bool name_ioengine, char **out, size_t *out_nbytes, struct nvs_error *error)
{
	struct edit edit = {.text = text, .point = point};
	int rc;

	nvs_config_init(&edit.before);
	rc = nvs_config_parse(&edit.before, text, nbytes, name, error);
	nvs_config_free(&edit.before);
	if (rc)
		return rc;
	edit.layout.root.keys = block_names;
	edit.layout.blocks = edit.blocks;
	edit.blocks[AIO].keys = aio_keys;
	edit.blocks[NVSWAP].keys = nvswap_keys;
	edit.set_ioengine = sets_ioengine(edit.before.aio.ioengine, point, name_ioengine);
	rc = make_edit(&edit, nbytes, out, out_nbytes);
	if (rc) {
		*error = (struct nvs_error){.code = rc};
		snprintf(error->text, sizeof(error->text), "%.200s: can't be edited: %s", name,
			 nvs_strerror(rc));
		return rc;
	}
	rc = verify(&edit, *out, *out_nbytes, name, error);
	if (rc) {
		free(*out);
		*out = NULL;
	}
	return rc;
}
