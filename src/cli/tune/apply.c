/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts a choice into the text of a configuration and copies every other byte. The new text is only
 * returned after the library has read the choice from it. A new file with the same mode and owner
 * replaces the old one, or the target of a link, once it is complete and durable.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"
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

static int set_member(struct tune_text *text, const char *name, const struct member *member,
		      struct nvs_error *error)
{
	const struct json_value *root, *object, *value;
	struct tune_text edited = {0};
	struct json_document *document;
	const char *from;
	FILE *out;
	bool blank;
	int rc = json_parse_relaxed(&document, text->bytes, text->nbytes, name, SIZE_MAX, error);

	if (rc)
		return rc;
	root = json_root(document);
	object = member->block ? json_member(root, member->block) : root;
	value = json_member(object, member->key);
	/* There is nothing in it, not even a comment. */
	blank = value && (value->type == JSON_NULL ||
			  (value->type == JSON_OBJECT &&
			   value->raw[1 + strspn(value->raw + 1, BLANKS)] == '}'));
	if (value ? member->stays || (!member->block && !blank)
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
	rc = rc ?: nvs_config_parse(*config, text->bytes, text->nbytes, name, error);
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
	rc = rc ?: parse(&config, text, name, error);
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

#define TEXT_MAX ((size_t)64 << 20) /* limit of nvs_config_load */

static int read_text(const char *path, struct tune_text *text, struct stat *st)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;

	if (fd < 0)
		return -errno;
	if (fstat(fd, st))
		rc = -errno;
	else if (!S_ISREG(st->st_mode))
		rc = -EINVAL;
	else
		rc = file_read_all(fd, TEXT_MAX, &text->bytes, &text->nbytes);
	close(fd);
	return !rc && text->nbytes > TEXT_MAX ? -EFBIG : rc;
}

/* Makes the new file complete and durable. Changing the owner clears bits of the mode. */
static int fill_new(int fd, const struct stat *old, const struct tune_text *text)
{
	struct stat st;

	if (fstat(fd, &st) ||
	    ((st.st_uid != old->st_uid || st.st_gid != old->st_gid) &&
	     fchown(fd, old->st_uid, old->st_gid)) ||
	    fchmod(fd, old->st_mode & 07777))
		return -errno;
	for (size_t at = 0; at < text->nbytes;) {
		ssize_t n = write(fd, text->bytes + at, text->nbytes - at);

		if (n < 0 && errno != EINTR)
			return -errno;
		at += n < 0 ? 0 : (size_t)n;
	}
	return fsync(fd) ? -errno : 0;
}

/* Replaces the file `to`, or, without a text, only checks that a new one can be made beside it. */
static int replace(const char *to, const struct stat *old, const struct tune_text *text,
		   struct nvs_error *error)
{
	char path[PATH_MAX + 8];
	int fd, rc;

	snprintf(path, sizeof(path), "%s.XXXXXX", to);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return error_set(error, -errno,
				 "%s can't be replaced, because its directory can't be written: "
				 "%s; give a copy in a directory that you may write to",
				 to, nvs_strerror(-errno));
	rc = text ? fill_new(fd, old, text) : 0;
	if (close(fd) && !rc)
		rc = -errno;
	if (!rc && text && rename(path, to))
		rc = -errno;
	if (rc || !text)
		unlink(path);
	if (rc)
		return error_set(error, rc, "%s is unchanged, because it can't be replaced: %s", to,
				 nvs_strerror(rc));
	if (!text)
		return 0;
	strrchr(path, '/')[1] = '\0';
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fsync(fd))
		rc = error_set(error, -errno, "%s has the choice, but a crash may undo that: %s",
			       to, nvs_strerror(-errno));
	if (fd >= 0)
		close(fd);
	return rc;
}

int tune_apply(const char *name, const struct tune_point *point, bool name_ioengine,
	       enum nvs_ioengine *named, struct nvs_error *error)
{
	static const struct tune_point any = {NVS_IOENGINE_POSIX, 1048576, 1, 1, false, true};
	struct tune_text old = {0}, text = {0};
	char path[PATH_MAX];
	struct stat st;
	int rc = realpath(name, path) ? read_text(path, &old, &st) : -errno;

	if (!rc && (!old.bytes || !(text.bytes = malloc(old.nbytes + 1))))
		rc = -ENOMEM;
	if (rc == -EINVAL) {
		error_set(error, rc, "%s is not a regular file", name);
	} else if (rc) {
		error_set(error, rc, "%s: can't be read: %s", name,
			  rc == -EFBIG ? "it is larger than a configuration may be, 64 MiB"
				       : nvs_strerror(rc));
	} else {
		memcpy(text.bytes, old.bytes, old.nbytes);
		text.nbytes = old.nbytes;
		rc = tune_edit(&text, name, point ? point : &any, name_ioengine, named, error);
	}
	if (!rc &&
	    (!point || text.nbytes != old.nbytes || memcmp(text.bytes, old.bytes, old.nbytes) != 0))
		rc = replace(path, &st, point ? &text : NULL, error);
	free(text.bytes);
	free(old.bytes);
	return rc;
}
