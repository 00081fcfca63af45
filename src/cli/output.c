/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors go to standard error, results to a file or standard output. A result that could not be
 * written whole is a failure of the command.
 */
#include "commands.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/result_file.h"
#include "progress.h"

void say(const char *format, ...)
{
	char text[2048], visible[2 * sizeof(text)];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "%snvswap: %s\n", progress_erase(),
		visible_text(text, strlen(text), visible, sizeof(visible)));
}

void say_log(void *arg, enum nvs_log_level level, const char *text)
{
	(void)arg;
	if (level <= NVS_LOG_WARNING)
		say("%s: %s", level == NVS_LOG_ERROR ? "error" : "warning", text);
}

static FILE *open_file(const char *path)
{
	int fd = result_open(path);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (file)
		return file;
	say("can't write the output to %s: %s", path, result_strerror(fd < 0 ? fd : -errno));
	if (fd >= 0)
		close(fd);
	return NULL;
}

int output_open(struct output *output, const char *path)
{
	/* Longer than most outputs: they are written when closing, which can report why it fails.
	 */
	static char buffer[64 << 10];

	*output = (struct output){.path = path, .file = path ? open_file(path) : stdout};
	if (!output->file)
		return STATUS_FAILED;
	setvbuf(output->file, buffer, _IOFBF, sizeof(buffer));
	return 0;
}

int output_begin(struct output *output)
{
	/* EINVAL: a terminal, a pipe or a device. */
	if (!output->path || !ftruncate(fileno(output->file), 0) || errno == EINVAL)
		return 0;
	say("can't empty the output %s: %s", output->path, strerror(errno));
	return STATUS_FAILED;
}

void print_visible(FILE *file, const char *text)
{
	size_t length = strlen(text), nbytes = 4 * length + 1;
	char *visible = malloc(nbytes);

	fputs(visible ? visible_text(text, length, visible, nbytes) : "?", file);
	free(visible);
}

int output_close(struct output *output)
{
	int failed = ferror(output->file);

	errno = 0;
	if (output->path)
		failed |= fclose(output->file);
	else
		failed |= fflush(output->file);
	output->file = NULL;
	if (!failed)
		return 0;
	say("the output to %s is incomplete: %s", output->path ? output->path : "standard output",
	    errno ? strerror(errno) : "a write failed");
	return STATUS_FAILED;
}

/* The path, with ./ before a dash and `suffix` behind it, as one word of a shell. */
static void put_word(FILE *file, const char *path, size_t length, const char *suffix)
{
	static const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					 "0123456789_./:,+%@=-";
	const char *quote = strspn(path, plain) < length ? "'" : "";

	fprintf(file, "%s%s", quote, *path == '-' ? "./" : "");
	for (size_t i = 0; i < length; i++)
		if (path[i] == '\'')
			fputs("'\\''", file);
		else
			fputc(path[i], file);
	fprintf(file, "%s%s", suffix, quote);
}

void say_page(const char *path)
{
	size_t length = path ? strlen(path) : 0, nbytes;
	char *text = NULL;
	FILE *file;
	struct stat st;

	if (!path || stat(path, &st) || !S_ISREG(st.st_mode))
		return;
	file = open_memstream(&text, &nbytes);
	if (!file)
		return;
	fputs("python3 -m nvswap.report ", file);
	put_word(file, path, length, "");
	fputs(" -o ", file);
	put_word(file, path, length - (text_ends_with(path, ".json") ? 5 : 0), ".html");
	if (!fclose(file))
		say("for a page of these results: %s", text);
	free(text);
}
