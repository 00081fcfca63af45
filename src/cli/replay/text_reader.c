/* SPDX-License-Identifier: Apache-2.0 */
/* Reads accesses from a text file, one a line, in the format of docs/replay.md. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/replay/reader.h"

#define LINE_BYTES 1024u
#define TIME_MAX   (UINT64_C(1) << 53) /* ns; maximum of the sum */
#define WORDS_MAX  3

struct unit {
	const char *name;
	uint64_t factor;
};
static const struct unit sizes[] = {{"", 1},	       {"k", 1u << 10},	  {"m", 1u << 20},
				    {"g", 1u << 30},   {"kib", 1u << 10}, {"mib", 1u << 20},
				    {"gib", 1u << 30}, {NULL, 0}};
static const struct unit times[] = {
	{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {NULL, 0}};

static uint64_t read_number(struct reader *reader, const char *text, const struct unit *units,
			    uint64_t max)
{
	const char *such = units == sizes ? "size, such as 65536, 64k or 16m"
					  : "time, such as 800us, 2.5ms or 1s";
	char *end;
	double number = strtod(text, &end);

	while (units->name && strcasecmp(units->name, end) != 0)
		units++;
	number *= (double)units->factor;
	if (end == text || !units->name || !(number >= 0 && number <= (double)max)) {
		reader_fail(reader, -EINVAL, "%s is no %s", text, such);
		return 0;
	}
	return (uint64_t)number;
}

static void swap_in(struct reader *reader, struct subject *subject)
{
	if (subject->uses)
		reader_fail(reader, -EINVAL, "%s is in use: release it or swap it out first",
			    subject->name);
	reader_add(reader, ACCESS_SWAP_IN, subject);
	reader_add(reader, ACCESS_WAIT, subject);
}

static void swap_out(struct reader *reader, struct subject *subject)
{
	if (!subject->uses)
		reader_add(reader, ACCESS_LEASE, subject);
	reader_add(reader, ACCESS_RELEASE_DIRTY, subject);
	reader_add(reader, ACCESS_SWAP_OUT, subject);
}

static void read_verb(struct reader *reader, char *const *words, unsigned n)
{
	const char *verb = words[0];
	uint64_t nbytes = n < 3 ? SIZE_UNKNOWN
				: read_number(reader, words[2], sizes, MODEL_BYTES_MAX);
	struct subject *subject = NULL;

	if (n > 1 && (!strcmp(verb, "swapin") || !strcmp(verb, "swapout") ||
		      !strcmp(verb, "release") || !strcmp(verb, "prefetch")))
		subject = reader_subject(reader, words[1], 0, nbytes, NVS_U8);
	else
		reader_fail(reader, -EINVAL,
			    "a line is swapin, swapout, release or prefetch NAME [BYTES], "
			    "compute TIME, or step");
	if (!subject)
		return;
	if (!strcmp(verb, "swapin"))
		swap_in(reader, subject);
	else if (!strcmp(verb, "swapout"))
		swap_out(reader, subject);
	else
		reader_add(reader, *verb == 'r' ? ACCESS_RELEASE_CLEAN : ACCESS_PREFETCH, subject);
}

static void read_line(struct reader *reader, char *line)
{
	char *words[WORDS_MAX + 1], *rest = NULL, *word;
	unsigned n = 0;

	line[strcspn(line, "#\n")] = '\0';
	for (word = strtok_r(line, " \t\r", &rest); word && n <= WORDS_MAX;
	     word = strtok_r(NULL, " \t\r", &rest))
		words[n++] = word;
	if (n > WORDS_MAX) {
		reader_fail(reader, -EINVAL, "more than three words");
	} else if (n == 1 && !strcmp(words[0], "step")) {
		if (reader->in_step)
			reader_add(reader, ACCESS_STEP_END, NULL);
		reader_add(reader, ACCESS_STEP_BEGIN, NULL);
	} else if (n == 2 && !strcmp(words[0], "compute")) {
		reader->now_ns += read_number(reader, words[1], times, TIME_MAX - reader->now_ns);
	} else if (n) {
		read_verb(reader, words, n);
	}
}

void text_read(struct reader *reader)
{
	char line[LINE_BYTES];

	while (!reader->rc && fgets(line, sizeof(line), reader->file)) {
		reader->line++;
		if (!strchr(line, '\n') && !feof(reader->file))
			reader_fail(reader, -EINVAL, "the line is longer than %u bytes",
				    LINE_BYTES - 2);
		else
			read_line(reader, line);
	}
}
