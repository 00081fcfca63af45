/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads job files line by line, by fio's rules: a ; or # and what follows on its line is a comment,
 * blanks around keys and values do not count, and nothing is quoted. Texts are cut where they lie;
 * what can't be is bounded by the same limit as the files.
 */
#include "jobfile.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES_MAX    (1u << 20) /* of all files and values together */
#define INCLUDES_MAX 16		/* one in another */

struct chunk {
	struct chunk *next;
	char text[];
};

struct reader {
	struct jobfile *jobfile;
	struct jobfile_line *lines; /* of all sections, one after the other */
	size_t nlines, lines_room, sections_room;
	size_t nbytes;	 /* that count against BYTES_MAX */
	bool in_section; /* a line belongs to the last section */
	struct nvs_error *error;
};

/* A line of a file, and how many files had to be included to get there. */
struct place {
	const char *file;
	unsigned line, depth;
};

static int fail(struct reader *reader, const struct place *at, int code, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

static int fail(struct reader *reader, const struct place *at, int code, const char *format, ...)
{
	struct nvs_error *error = reader->error;
	va_list args;
	size_t n;

	*error = (struct nvs_error){.code = code, .line = at->line};
	if (at->line)
		snprintf(error->text, sizeof(error->text), "%.512s:%u: ", at->file, at->line);
	else
		snprintf(error->text, sizeof(error->text), "%.512s: ", at->file);
	n = strlen(error->text);
	va_start(args, format);
	vsnprintf(error->text + n, sizeof(error->text) - n, format, args);
	va_end(args);
	return code;
}

static int fail_memory(struct reader *reader, const struct place *at)
{
	return fail(reader, at, -ENOMEM, "no memory left");
}

static int count_bytes(struct reader *reader, const struct place *at, size_t nbytes)
{
	reader->nbytes += nbytes;
	if (reader->nbytes <= BYTES_MAX)
		return 0;
	return fail(reader, at, -EFBIG, "longer than 1 MiB with all that it includes");
}

/* Memory that lives as long as the job file, for n bytes and a 0; NULL: there is none. */
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

static const char *keep(struct reader *reader, const char *text, size_t n)
{
	char *copy = chunk_new(reader->jobfile, n);

	return copy ? memcpy(copy, text, n) : NULL;
}

/* Makes room for one more item of an array. */
static int grow(void **items, size_t n, size_t *room, size_t nbytes)
{
	size_t wanted = *room ? 2 * *room : 64;
	void *grown;

	if (n < *room)
		return 0;
	grown = realloc(*items, wanted * nbytes);
	if (!grown)
		return -ENOMEM;
	*items = grown;
	*room = wanted;
	return 0;
}

static bool is_blank(char c)
{
	return isspace((unsigned char)c);
}

static char *trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && is_blank(end[-1]))
		end--;
	*end = '\0';
	while (is_blank(*text))
		text++;
	return text;
}

/* fio's names of what a machine has; 0: `name` is none of them. Sets the name's length. */
static unsigned long long keyword_value(const char *name, size_t *length)
{
	unsigned long long pages = (unsigned long long)sysconf(_SC_PHYS_PAGES);
	unsigned long long page = (unsigned long long)sysconf(_SC_PAGESIZE);
	const struct {
		const char *name;
		unsigned long long value;
	} keywords[] = {{"$ncpus", (unsigned long long)sysconf(_SC_NPROCESSORS_ONLN)},
			{"$mb_memory", (pages * page) >> 20},
			{"$pagesize", page}};

	for (size_t i = 0; i < sizeof(keywords) / sizeof(*keywords); i++) {
		*length = strlen(keywords[i].name);
		if (!strncmp(name, keywords[i].name, *length))
			return keywords[i].value;
	}
	return 0;
}

/* *text is at a "${"; leaves it behind the }. */
static int variable_value(struct reader *reader, const struct place *at, const char **text,
			  const char **value)
{
	const char *end = strchr(*text, '}');
	char name[256];
	size_t length;

	if (!end)
		return fail(reader, at, -EINVAL, "%s has no } at its end", *text);
	length = (size_t)(end - *text) - 2;
	if (!length || length >= sizeof(name))
		return fail(reader, at, -EINVAL,
			    "between ${ and } goes the name of a variable of the environment, of "
			    "up to %zu characters",
			    sizeof(name) - 1);
	memcpy(name, *text + 2, length);
	name[length] = '\0';
	*text = end + 1;
	*value = getenv(name);
	if (*value)
		return 0;
	return fail(reader, at, -EINVAL,
		    "${%s} is not set: put %s=... before the command, or export it", name, name);
}

struct growing_text {
	char *bytes;
	size_t n, room;
};

/* Takes memory even for nothing, so that there is some to point to. */
static int append(struct growing_text *text, const char *from, size_t n)
{
	while (text->room - text->n <= n)
		if (grow((void **)&text->bytes, text->room, &text->room, 1))
			return -ENOMEM;
	memcpy(text->bytes + text->n, from, n);
	text->n += n;
	return 0;
}

/* What stands at *text, a $, goes behind `made`, or the $ itself where it means nothing. */
static int expand_one(struct reader *reader, const struct place *at, const char **text,
		      struct growing_text *made)
{
	size_t length = 1;
	unsigned long long of_machine = keyword_value(*text, &length);
	const char *value = "$";
	char number[32];
	int rc = 0;

	if (of_machine) {
		snprintf(number, sizeof(number), "%llu", of_machine);
		value = number;
		*text += length;
	} else if ((*text)[1] == '{') {
		rc = variable_value(reader, at, text, &value);
	} else {
		++*text;
	}
	if (!rc)
		rc = count_bytes(reader, at, strlen(value));
	if (rc)
		return rc;
	return append(made, value, strlen(value)) ? fail_memory(reader, at) : 0;
}

/* *text with what variables stand for in their place. */
static int expand(struct reader *reader, const struct place *at, const char **text)
{
	struct growing_text made = {0};
	int rc = 0;

	if (!strchr(*text, '$'))
		return 0;
	for (const char *from = *text; *from && !rc;) {
		size_t n = strcspn(from, "$");

		rc = append(&made, from, n) ? fail_memory(reader, at) : 0;
		from += n;
		if (*from && !rc)
			rc = expand_one(reader, at, &from, &made);
	}
	if (!rc) {
		*text = keep(reader, made.bytes, made.n);
		rc = *text ? 0 : fail_memory(reader, at);
	}
	free(made.bytes);
	return rc;
}

static int begin_section(struct reader *reader, const struct place *at, char *text)
{
	struct jobfile *jobfile = reader->jobfile;
	char *end = strchr(text, ']');

	if (!end)
		return fail(reader, at, -EINVAL, "%s has no ] at its end", text);
	if (end[1])
		return fail(reader, at, -EINVAL,
			    "after [...] nothing may follow on its line, and there is %s", end + 1);
	*end = '\0';
	text = trim(text + 1);
	if (!*text)
		return fail(reader, at, -EINVAL, "[] needs the name of a job in it");
	if (grow((void **)&jobfile->sections, jobfile->n, &reader->sections_room,
		 sizeof(*jobfile->sections)))
		return fail_memory(reader, at);
	jobfile->sections[jobfile->n++] =
		(struct jobfile_section){.name = text, .file = at->file, .line = at->line};
	reader->in_section = true;
	return 0;
}

static bool has_blank(const char *text)
{
	for (; *text; text++)
		if (is_blank(*text))
			return true;
	return false;
}

static int add_line(struct reader *reader, const struct place *at, char *text)
{
	struct jobfile_line line = {.file = at->file, .line = at->line};
	char *equals = strchr(text, '=');
	int rc = 0;

	if (!reader->in_section)
		return fail(reader, at, -EINVAL,
			    "%s stands in no section: put [global] or the [name] of a job above it",
			    text);
	if (equals) {
		*equals = '\0';
		line.value = trim(equals + 1);
		rc = expand(reader, at, &line.value);
	}
	if (rc)
		return rc;
	line.key = trim(text);
	if (!*line.key || has_blank(line.key))
		return fail(reader, at, -EINVAL,
			    "\"%s\" is no key: a line is key=value, a key alone, [name], or "
			    "include FILE",
			    line.key);
	if (grow((void **)&reader->lines, reader->nlines, &reader->lines_room, sizeof(line)))
		return fail_memory(reader, at);
	reader->lines[reader->nlines++] = line;
	reader->jobfile->sections[reader->jobfile->n - 1].n++;
	return 0;
}

/* All that can be read, and no more than it takes to see that it is too long; NULL: the reader has
 * failed. */
static char *read_text(struct reader *reader, const struct place *at, int fd, size_t *n)
{
	char *whole = NULL, *kept = NULL;
	size_t room = 0;
	ssize_t got = 1;

	for (*n = 0; got && reader->nbytes + *n <= BYTES_MAX; *n += got > 0 ? (size_t)got : 0) {
		if (grow((void **)&whole, *n, &room, 1))
			goto out;
		got = read(fd, whole + *n, room - *n);
		if (got < 0 && errno != EINTR) {
			fail(reader, at, -errno, "%s", strerror(errno));
			free(whole);
			return NULL;
		}
	}
	kept = chunk_new(reader->jobfile, *n);
	if (kept)
		memcpy(kept, whole, *n);
out:
	if (!kept)
		fail_memory(reader, at);
	free(whole);
	return kept;
}

static int parse_text(struct reader *reader, struct place *at, char *text, size_t nbytes);

static int parse_descriptor(struct reader *reader, struct place *at, int fd)
{
	size_t nbytes;
	char *text = read_text(reader, at, fd, &nbytes);

	return text ? parse_text(reader, at, text, nbytes) : reader->error->code;
}

/* Opens `name` beside the file that names it, or in the working directory; *path is then its. */
static int open_include(struct reader *reader, const struct place *at, const char *name,
			const char **path)
{
	const char *slash = strrchr(at->file, '/');
	char *beside = NULL;
	/* A file that nobody may ever write into is not waited for. */
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK, fd = -1;

	if (slash && *name != '/' &&
	    asprintf(&beside, "%.*s/%s", (int)(slash - at->file), at->file, name) < 0)
		return fail_memory(reader, at);
	if (beside)
		fd = open(beside, flags);
	if (fd >= 0)
		name = beside;
	else if (!beside || errno == ENOENT)
		fd = open(name, flags);
	if (fd < 0) {
		int code = errno;

		free(beside);
		return fail(reader, at, -code, "include %s: %s", name, strerror(code));
	}
	*path = keep(reader, name, strlen(name));
	free(beside);
	if (*path)
		return fd;
	close(fd);
	return fail_memory(reader, at);
}

static int include(struct reader *reader, const struct place *at, const char *name)
{
	struct place inside = {.depth = at->depth + 1};
	size_t nsections = reader->jobfile->n;
	struct stat status;
	int rc = expand(reader, at, &name), fd;

	if (rc)
		return rc;
	if (inside.depth > INCLUDES_MAX)
		return fail(
			reader, at, -EINVAL,
			"include %s: files include each other %d deep; does one include itself?",
			name, INCLUDES_MAX);
	fd = open_include(reader, at, name, &inside.file);
	if (fd < 0)
		return fd;
	if (fstat(fd, &status) || !S_ISREG(status.st_mode))
		rc = fail(reader, at, -EINVAL, "include %s: it is not a file", name);
	else
		rc = parse_descriptor(reader, &inside, fd);
	close(fd);
	/* Whose section it would be can't be seen in this file. */
	if (reader->jobfile->n > nsections)
		reader->in_section = false;
	return rc;
}

/* What an include names; NULL: the line is none. */
static const char *included_name(const char *line)
{
	static const char word[] = "include";
	const char *name = line + sizeof(word) - 1;

	if (strncmp(line, word, sizeof(word) - 1) != 0 || !is_blank(*name))
		return NULL;
	while (is_blank(*name))
		name++;
	return *name == '=' ? NULL : name;
}

static int parse_line(struct reader *reader, const struct place *at, char *line)
{
	const char *name;

	line[strcspn(line, ";#")] = '\0';
	line = trim(line);
	if (!*line)
		return 0;
	if (*line == '[')
		return begin_section(reader, at, line);
	name = included_name(line);
	return name ? include(reader, at, name) : add_line(reader, at, line);
}

/* `at` is the file, before its first line; `text` ends with a 0 behind nbytes. */
static int parse_text(struct reader *reader, struct place *at, char *text, size_t nbytes)
{
	static const char byte_order_mark[] = "\xef\xbb\xbf";
	char *end = text + nbytes;
	int rc = count_bytes(reader, at, nbytes);

	assert(!*end);
	if (!strncmp(text, byte_order_mark, 3))
		text += 3;
	while (!rc && text < end) {
		char *next = memchr(text, '\n', (size_t)(end - text));

		next = next ? next : end;
		*next = '\0';
		at->line++;
		if (text + strlen(text) < next)
			return fail(reader, at, -EINVAL, "a byte of 0: this is no text");
		rc = parse_line(reader, at, text);
		text = next + 1;
	}
	return rc;
}

/* Sections get their lines, now that these stay where they are; after an error all is freed. */
static int finish(struct reader *reader, int rc)
{
	struct jobfile *jobfile = reader->jobfile;
	size_t first = 0;

	jobfile->lines = reader->lines;
	for (size_t i = 0; i < jobfile->n && reader->nlines; i++) {
		jobfile->sections[i].lines = &reader->lines[first];
		first += jobfile->sections[i].n;
	}
	if (rc)
		jobfile_free(jobfile);
	return rc;
}

static int read_descriptor(struct jobfile *jobfile, int fd, const char *name,
			   struct nvs_error *error)
{
	struct reader reader = {.jobfile = jobfile, .error = error};
	struct place at = {.file = keep(&reader, name, strlen(name))};

	if (at.file)
		return finish(&reader, parse_descriptor(&reader, &at, fd));
	at.file = name;
	return finish(&reader, fail_memory(&reader, &at));
}

int jobfile_read(struct jobfile *jobfile, const char *path, struct nvs_error *error)
{
	struct reader reader = {.jobfile = jobfile, .error = error};
	int fd, rc;

	*jobfile = (struct jobfile){0};
	if (!strcmp(path, "-"))
		return read_descriptor(jobfile, STDIN_FILENO, "standard input", error);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(&reader, &(struct place){.file = path}, -errno, "%s", strerror(errno));
	rc = read_descriptor(jobfile, fd, path, error);
	close(fd);
	return rc;
}

int jobfile_parse(struct jobfile *jobfile, const char *text, size_t nbytes, const char *name,
		  struct nvs_error *error)
{
	struct reader reader = {.jobfile = jobfile, .error = error};
	struct place at = {.file = name};
	char *copy;

	*jobfile = (struct jobfile){0};
	copy = chunk_new(jobfile, nbytes);
	at.file = keep(&reader, name, strlen(name));
	if (!copy || !at.file) {
		at.file = name;
		return finish(&reader, fail_memory(&reader, &at));
	}
	memcpy(copy, text, nbytes);
	return finish(&reader, parse_text(&reader, &at, copy, nbytes));
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
