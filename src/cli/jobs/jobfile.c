/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file is read whole and cut in place: keys, values and names point into its text. Errors quote
 * nothing of a line that has not the form of a job file, because the file may be another one.
 */
#include "cli/jobs/jobs.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files.h"

#define BYTES_MAX ((size_t)1 << 20)
#define VALUE_MAX 4096 /* bytes of an expanded value, with the 0 at its end */

struct chunk {
	struct chunk *next;
	char bytes[];
};

#define FAIL(error, file, line, format, ...)                                                       \
	error_about(error, -EINVAL, NULL, line, 0, "%.512s:%u: " format, file, line, __VA_ARGS__)

/* n zeroed bytes and a 0 behind them, or NULL. */
static void *keep_chunk(void **memory, size_t n)
{
	struct chunk *chunk = calloc(1, sizeof(*chunk) + n + 1);

	if (!chunk)
		return NULL;
	chunk->next = *memory;
	*memory = chunk;
	return chunk->bytes;
}

void jobfile_forget(void **memory)
{
	while (*memory) {
		struct chunk *chunk = *memory;

		*memory = chunk->next;
		free(chunk);
	}
}

int jobfile_expand(void **memory, struct jobfile_line *line, struct nvs_error *error)
{
	char expanded[VALUE_MAX], name[256], *kept;
	const char *text = line->value;
	size_t n = 0;

	if (!text || !strstr(text, "${"))
		return 0;
	while (*text) {
		const char *part = text, *end;
		size_t length = 1;

		if (text[0] != '$' || text[1] != '{') {
			text++;
		} else {
			end = strchr(text, '}');
			if (!end)
				return FAIL(error, line->file, line->line, "%s has no }", text);
			length = (size_t)(end - text) - 2;
			if (!length || length >= sizeof(name))
				return FAIL(error, line->file, line->line,
					    "${...} takes the name of an environment variable, of "
					    "up to %zu bytes",
					    sizeof(name) - 1);
			snprintf(name, sizeof(name), "%.*s", (int)length, text + 2);
			part = getenv(name);
			if (!part)
				return FAIL(error, line->file, line->line,
					    "${%s} is not set: put %s=... before the command, or "
					    "export it",
					    name, name);
			length = strlen(part);
			text = end + 1;
		}
		if (length >= sizeof(expanded) - n)
			return FAIL(error, line->file, line->line,
				    "the value of %s has more than %d bytes", line->key,
				    VALUE_MAX - 1);
		memcpy(expanded + n, part, length);
		n += length;
	}
	kept = keep_chunk(memory, n);
	if (!kept)
		return error_set(error, -ENOMEM, "%.512s: out of memory", line->file);
	line->value = memcpy(kept, expanded, n);
	return 0;
}

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

/* NULL, or what is wrong with the line. */
static const char *add_line(struct jobfile *jobfile, const char *file, unsigned line, char *text)
{
	char *value, *end;

	text[strcspn(text, ";#")] = '\0';
	text = trim(text);
	if (!*text)
		return NULL;
	if (*text == '[') {
		end = strchr(text, ']');
		if (!end)
			return "a [ has no ]";
		if (end[1])
			return "nothing may follow [...] on its line";
		*end = '\0';
		text = trim(text + 1);
		if (!*text)
			return "[] lacks the name of a job";
		jobfile->sections[jobfile->n++] =
			(struct jobfile_section){.name = text,
						 .file = file,
						 .line = line,
						 .lines = jobfile->lines + jobfile->nlines};
		return NULL;
	}
	if (!jobfile->n)
		return "this line is in no section: put [global] or the [name] of a job above it";
	value = strchr(text, '=');
	if (value)
		*value++ = '\0';
	text = trim(text);
	if (!*text || text[strcspn(text, " \t\v\f\r")])
		return "a line is key=value, a key alone, or [name], and this is none";
	jobfile->lines[jobfile->nlines++] = (struct jobfile_line){
		.file = file, .line = line, .key = text, .value = value ? trim(value) : NULL};
	jobfile->sections[jobfile->n - 1].n++;
	return NULL;
}

int jobfile_read(struct jobfile *jobfile, const char *path, void **memory, struct nvs_error *error)
{
	bool standard_input = !strcmp(path, "-");
	const char *name = standard_input ? "standard input" : path, *wrong;
	int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC), rc;
	size_t nbytes = 0, most = 1;
	char *whole = NULL, *text = NULL, *end;

	*jobfile = (struct jobfile){.n = 0};
	if (fd < 0)
		return error_set(error, -errno, "%.512s: %s", path, nvs_strerror(-errno));
	rc = file_read_all(fd, BYTES_MAX, &whole, &nbytes);
	if (!standard_input)
		close(fd);
	if (!rc && nbytes > BYTES_MAX)
		rc = -EFBIG;
	if (!rc && (text = keep_chunk(memory, nbytes)))
		memcpy(text, whole, nbytes);
	free(whole);
	if (rc)
		return error_set(error, rc, "%.512s: %s", name,
				 rc == -EFBIG ? "a job file has at most 1 MiB" : nvs_strerror(rc));
	/* The most sections and lines that a text of this length can have. */
	for (size_t i = 0; text && i < nbytes; i++)
		most += text[i] == '\n';
	if (text)
		jobfile->sections = keep_chunk(memory, most * sizeof(*jobfile->sections));
	if (jobfile->sections)
		jobfile->lines = keep_chunk(memory, most * sizeof(*jobfile->lines));
	if (!jobfile->lines)
		return error_set(error, -ENOMEM, "%.512s: out of memory", name);
	end = text + nbytes;
	if (!strncmp(text, "\xef\xbb\xbf", 3))
		text += 3; /* a byte order mark */
	for (unsigned line = 1; text < end; line++) {
		char *next = memchr(text, '\n', (size_t)(end - text));

		next = next ? next : end;
		*next = '\0';
		wrong = strlen(text) < (size_t)(next - text) ? "a byte of 0: this is no text"
							     : add_line(jobfile, name, line, text);
		if (wrong)
			return FAIL(error, name, line, "%s", wrong);
		text = next + 1;
	}
	return 0;
}
