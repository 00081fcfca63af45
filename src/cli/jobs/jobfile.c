/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is read whole and cut in place: keys, values and names point into its text. Errors quote
 * nothing of a line that has not the form of a job file, because the file may be another one.
 */
#include "cli/jobs/jobfile.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

#define BYTES_MAX  ((size_t)1 << 20)
#define FILE_BYTES ((size_t)8 << 10) /* of most job files */
#define VALUE_MAX  4096		     /* bytes of an expanded value, with the 0 at its end */

struct chunk {
	struct chunk *next;
	char text[];
};

static int __attribute__((format(printf, 5, 6)))
fail(struct nvs_error *error, const char *file, unsigned line, int code, const char *format, ...)
{
	va_list args;
	size_t n;

	*error = (struct nvs_error){.size = sizeof(*error), .code = code, .line = line};
	if (line)
		snprintf(error->text, sizeof(error->text), "%.512s:%u: ", file, line);
	else
		snprintf(error->text, sizeof(error->text), "%.512s: ", file);
	n = strlen(error->text);
	va_start(args, format);
	vsnprintf(error->text + n, sizeof(error->text) - n, format, args);
	va_end(args);
	return code;
}

static int fail_memory(struct nvs_error *error, const char *file)
{
	return fail(error, file, 0, -ENOMEM, "out of memory");
}

/* Memory for n bytes and a 0, freed with the job file; or NULL. */
static char *chunk_new(struct jobfile *jobfile, size_t n)
{
	struct chunk *chunk = malloc(sizeof(*chunk) + n + 1);

	if (!chunk)
		return NULL;
	chunk->next = jobfile->memory;
	jobfile->memory = chunk;
	chunk->text[n] = '\0';
	return chunk->text;
}

/* ---- Values */

static int fail_length(const struct jobfile_line *line, struct nvs_error *error)
{
	return fail(error, line->file, line->line, -EINVAL,
		    "the value of %s has more than %d bytes", line->key, VALUE_MAX - 1);
}

/*
 * Expands the variable at *text ("${") into `to`, and moves *text behind its "}". Returns the
 * length.
 */
static int expand_variable(const struct jobfile_line *line, const char **text, char to[VALUE_MAX],
			   struct nvs_error *error)
{
	const char *end = strchr(*text, '}'), *value;
	char name[256];
	size_t length;

	if (!end)
		return fail(error, line->file, line->line, -EINVAL, "%s has no }", *text);
	length = (size_t)(end - *text) - 2;
	if (!length || length >= sizeof(name))
		return fail(error, line->file, line->line, -EINVAL,
			    "${...} takes the name of an environment variable, of up to %zu bytes",
			    sizeof(name) - 1);
	memcpy(name, *text + 2, length);
	name[length] = '\0';
	*text = end + 1;
	value = getenv(name);
	if (!value)
		return fail(error, line->file, line->line, -EINVAL,
			    "${%s} is not set: put %s=... before the command, or export it", name,
			    name);
	length = strlen(value);
	if (length >= VALUE_MAX)
		return fail_length(line, error);
	memcpy(to, value, length);
	return (int)length;
}

int jobfile_expand(struct jobfile *jobfile, struct jobfile_line *line, struct nvs_error *error)
{
	char expanded[VALUE_MAX], variable[VALUE_MAX];
	const char *text = line->value;
	size_t n = 0;
	char *kept;

	if (!text || !strstr(text, "${"))
		return 0;
	while (*text) {
		const char *part = variable;
		int length = 1;

		if (text[0] == '$' && text[1] == '{')
			length = expand_variable(line, &text, variable, error);
		else
			part = text++;
		if (length < 0)
			return length;
		if (n + (size_t)length >= sizeof(expanded))
			return fail_length(line, error);
		memcpy(expanded + n, part, (size_t)length);
		n += (size_t)length;
	}
	kept = chunk_new(jobfile, n);
	if (!kept)
		return fail_memory(error, line->file);
	line->value = memcpy(kept, expanded, n);
	return 0;
}

/* ---- Lines */

static char *trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && isspace((unsigned char)end[-1]))
		end--;
	*end = '\0';
	while (isspace((unsigned char)*text))
		text++;
	return text;
}

static int begin_section(struct jobfile *jobfile, const char *file, unsigned line, char *text,
			 struct nvs_error *error)
{
	char *end = strchr(text, ']');

	if (!end)
		return fail(error, file, line, -EINVAL, "a [ has no ]");
	if (end[1])
		return fail(error, file, line, -EINVAL, "nothing may follow [...] on its line");
	*end = '\0';
	text = trim(text + 1);
	if (!*text)
		return fail(error, file, line, -EINVAL, "[] lacks the name of a job");
	jobfile->sections[jobfile->n++] = (struct jobfile_section){
		.name = text,
		.file = file,
		.line = line,
		.lines = jobfile->lines + jobfile->nlines,
	};
	return 0;
}

static int add_line(struct jobfile *jobfile, const char *file, unsigned line, char *text,
		    struct nvs_error *error)
{
	char *value = strchr(text, '=');

	if (!jobfile->n)
		return fail(error, file, line, -EINVAL,
			    "this line is in no section: put [global] or the [name] of a job "
			    "above it");
	if (value)
		*value++ = '\0';
	text = trim(text);
	if (!*text || text[strcspn(text, " \t\v\f\r")])
		return fail(error, file, line, -EINVAL,
			    "a line is key=value, a key alone, or [name], and this is none");
	jobfile->lines[jobfile->nlines++] = (struct jobfile_line){
		.file = file, .line = line, .key = text, .value = value ? trim(value) : NULL};
	jobfile->sections[jobfile->n - 1].n++;
	return 0;
}

/* Names and values go to terminals and reports. */
static bool has_control(const char *text)
{
	size_t left = strlen(text), length;

	for (; left; text += length, left -= length) {
		length = utf8_length(text, left);
		if (length ? *text != '\t' && utf8_is_control(text, length)
			   : ((unsigned char)*text & 0xe0) == 0x80)
			return true;
		length = length ? length : 1;
	}
	return false;
}

static int parse_line(struct jobfile *jobfile, const char *file, unsigned line, char *text,
		      struct nvs_error *error)
{
	text[strcspn(text, ";#")] = '\0';
	text = trim(text);
	if (!*text)
		return 0;
	if (has_control(text))
		return fail(error, file, line, -EINVAL, "a control character: this is no text");
	return *text == '[' ? begin_section(jobfile, file, line, text, error)
			    : add_line(jobfile, file, line, text, error);
}

/* ---- Files */

/* Allocates the most sections and lines that a text of this length can have. */
static int make_room(struct jobfile *jobfile, const char *text, size_t nbytes)
{
	size_t n = 1;

	for (size_t i = 0; i < nbytes; i++)
		n += text[i] == '\n';
	jobfile->sections = calloc(n, sizeof(*jobfile->sections));
	jobfile->lines = calloc(n, sizeof(*jobfile->lines));
	return jobfile->sections && jobfile->lines ? 0 : -ENOMEM;
}

/* `text` belongs to the job file and ends with a 0 behind nbytes. */
static int parse_text(struct jobfile *jobfile, char *text, size_t nbytes, const char *file,
		      struct nvs_error *error)
{
	static const char byte_order_mark[] = "\xef\xbb\xbf";
	char *end = text + nbytes;
	int rc = 0;

	if (nbytes > BYTES_MAX)
		return fail(error, file, 0, -EFBIG, "a job file has at most 1 MiB");
	if (make_room(jobfile, text, nbytes))
		return fail_memory(error, file);
	if (!strncmp(text, byte_order_mark, 3))
		text += 3;
	for (unsigned line = 1; !rc && text < end; line++) {
		char *next = memchr(text, '\n', (size_t)(end - text));

		next = next ? next : end;
		*next = '\0';
		if (text + strlen(text) < next)
			return fail(error, file, line, -EINVAL, "a byte of 0: this is no text");
		rc = parse_line(jobfile, file, line, text, error);
		text = next + 1;
	}
	return rc;
}

/* A copy of nbytes of text with more room, at first FILE_BYTES and BYTES_MAX + 1 at most; or
 * NULL. */
static char *chunk_grow(struct jobfile *jobfile, const char *text, size_t nbytes, size_t *room)
{
	char *grown;

	*room = nbytes ? 16 * nbytes : FILE_BYTES;
	*room = *room < BYTES_MAX + 1 ? *room : BYTES_MAX + 1;
	grown = chunk_new(jobfile, *room);
	return grown && nbytes ? memcpy(grown, text, nbytes) : grown;
}

static int read_and_parse(struct jobfile *jobfile, int fd, const char *name,
			  struct nvs_error *error)
{
	size_t nbytes = 0, room;
	char *text = chunk_grow(jobfile, NULL, 0, &room);
	ssize_t got = 1;

	while (text && got && nbytes <= BYTES_MAX) {
		got = read(fd, text + nbytes, room - nbytes);
		if (got < 0 && errno != EINTR)
			return fail(error, name, 0, -errno, "%s", nvs_strerror(-errno));
		nbytes += got > 0 ? (size_t)got : 0;
		if (nbytes == room && room <= BYTES_MAX)
			text = chunk_grow(jobfile, text, nbytes, &room);
	}
	if (!text)
		return fail_memory(error, name);
	text[nbytes] = '\0';
	return parse_text(jobfile, text, nbytes, name, error);
}

int jobfile_read(struct jobfile *jobfile, const char *path, struct nvs_error *error)
{
	bool standard_input = !strcmp(path, "-");
	int fd = STDIN_FILENO, rc;

	*jobfile = (struct jobfile){0};
	if (!standard_input)
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(error, path, 0, -errno, "%s", nvs_strerror(-errno));
	rc = read_and_parse(jobfile, fd, standard_input ? "standard input" : path, error);
	if (!standard_input)
		close(fd);
	if (rc)
		jobfile_free(jobfile);
	return rc;
}

int jobfile_parse(struct jobfile *jobfile, const char *text, size_t nbytes, const char *name,
		  struct nvs_error *error)
{
	char *copy;
	int rc;

	*jobfile = (struct jobfile){0};
	copy = chunk_new(jobfile, nbytes);
	if (!copy)
		return fail_memory(error, name);
	memcpy(copy, text, nbytes);
	rc = parse_text(jobfile, copy, nbytes, name, error);
	if (rc)
		jobfile_free(jobfile);
	return rc;
}

void jobfile_free(struct jobfile *jobfile)
{
	struct chunk *chunk = jobfile->memory;

	while (chunk) {
		struct chunk *next = chunk->next;

		free(chunk);
		chunk = next;
	}
	free(jobfile->lines);
	free(jobfile->sections);
	*jobfile = (struct jobfile){0};
}
