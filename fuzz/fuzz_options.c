/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of the input are the arguments of `nvswap bench`. What is accepted lies within the
 * bounds of the table of options, and nothing is said; of what is refused one thing is said.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/commands.h"

#define ARGUMENTS_MAX 64

static unsigned times_said;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* In place of the command's, which would write each to standard error. */
void say(const char *format, ...)
{
	char text[4096];
	va_list args;

	va_start(args, format);
	assert(vsnprintf(text, sizeof(text), format, args) > 0);
	va_end(args);
	times_said++;
}

/* Cuts the text, which ends with a 0, at line ends. */
static int cut(char *text, char **argv)
{
	static char name[] = "bench";
	int argc = 1;

	argv[0] = name;
	while (argc <= ARGUMENTS_MAX && text)
		argv[argc++] = strsep(&text, "\n");
	argv[argc] = NULL;
	return argc;
}

static void check_number(const struct option_spec *spec, uint64_t value)
{
	assert(value >= spec->min && value <= spec->max);
	assert(!spec->multiple || value % spec->multiple == 0);
}

static void check_choice(const struct option_spec *spec, unsigned choice, const char *text)
{
	for (unsigned i = 0; i <= choice; i++)
		assert(spec->choices[i]);
	assert(!strcmp(spec->choices[choice], text));
}

static void check_list(const struct option_list *list, const char *last)
{
	assert(list->n >= 1 && list->n <= NVS_PATHS_MAX);
	assert(list->items[list->n - 1] == last);
}

/* Of an option that was given as `text`. */
static void check_option(const struct option_spec *spec, const void *at, const char *text)
{
	switch (spec->type) {
	case OPTION_FLAG:
		assert(*(const bool *)at);
		break;
	case OPTION_COUNT:
	case OPTION_SIZE:
	case OPTION_DURATION:
		check_number(spec, *(const uint64_t *)at);
		break;
	case OPTION_SHARE:
		assert(*(const double *)at > 0 && *(const double *)at <= 1);
		break;
	case OPTION_CHOICE:
		check_choice(spec, *(const unsigned *)at, text);
		break;
	case OPTION_STRING:
		assert(*text && *(const char *const *)at == text);
		break;
	case OPTION_LIST:
		check_list(at, text);
		break;
	}
}

static void check_accepted(const struct bench_options *options, const struct options_given *given)
{
	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];

		assert(bench_option_given(given, spec->name) == !!given->text[i]);
		if (given->text[i])
			check_option(spec, (const char *)options + spec->offset, given->text[i]);
	}
	assert(options->tensors && options->tensor_size && options->loops);
}

/* Parses a copy of the input, and checks what comes of it; given: by index in the table. */
static int parse(const uint8_t *data, size_t nbytes, bool given[OPTIONS_MAX])
{
	char *text = strndup((const char *)data, nbytes), *argv[ARGUMENTS_MAX + 2];
	struct bench_options options;
	struct options_given typed;
	int rc;

	assert(text);
	times_said = 0;
	rc = bench_options_parse(&options, &typed, cut(text, argv), argv);
	assert(rc == 0 || rc == OPTIONS_HELP || rc == -EINVAL);
	assert(times_said == (rc == -EINVAL));
	if (!rc)
		check_accepted(&options, &typed);
	for (unsigned i = 0; i < OPTIONS_MAX; i++)
		given[i] = typed.text[i];
	free(text);
	return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	bool once[OPTIONS_MAX], again[OPTIONS_MAX];

	/* What was parsed before makes no difference. */
	assert(parse(data, nbytes, once) == parse(data, nbytes, again));
	assert(!memcmp(once, again, sizeof(once)));
	return 0;
}
