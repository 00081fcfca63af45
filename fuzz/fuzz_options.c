/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines of the input are the arguments of `nvswap bench`. Accepted values are within the bounds
 * of the table of options, and no message is printed; for a refused input, exactly one message is
 * printed.
 */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocations.h"
#include "cli/commands.h"
#include "cli/jobs/jobs.h"

#define ARGUMENTS_MAX 64

static unsigned times_said;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

/* Replaces the command's function, which writes to standard error. */
void say(const char *format, ...)
{
	char text[4096];
	va_list args;

	va_start(args, format);
	assert(vsnprintf(text, sizeof(text), format, args) > 0);
	va_end(args);
	times_said++;
}

/* Splits the NUL-terminated text at line ends. */
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

static unsigned count_choices(const struct option_spec *spec)
{
	unsigned n = 0;

	while (spec->choices[n])
		n++;
	return n;
}

static void check_choice(const struct option_spec *spec, unsigned choice, const char *text)
{
	assert(choice < count_choices(spec));
	assert(!strcmp(spec->choices[choice], text));
}

/* The text that was given last is cut. */
static void check_list(const struct option_list *list, const char *last)
{
	bool has_last = false;

	assert(list->n >= 1 && list->n <= NVS_PATHS_MAX);
	for (unsigned i = 0; i < list->n; i++) {
		assert(*list->items[i]);
		has_last |= list->items[i] == last;
	}
	assert(has_last);
}

/* Checks an option that was given as `text`. */
static void check_option(const struct option_spec *spec, const void *at, const char *text)
{
	switch (spec->type) {
	case OPTION_FLAG:
		assert(*(const bool *)at == !!strcmp(text, "0"));
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
	case OPTION_CHOICES:
		assert(*(const unsigned *)at && *(const unsigned *)at >> count_choices(spec) == 0);
		break;
	case OPTION_PERCENT:
		assert(*(const double *)at >= 0 && *(const double *)at <= 100);
		break;
	}
}

static void check_accepted(const struct bench_options *options, const struct options_given *given)
{
	for (unsigned i = 0; i < bench_command.noptions; i++) {
		const struct option_spec *spec = &bench_command.options[i];

		if (!given->text[i])
			continue;
		assert(bench_option_given(given, spec->name));
		check_option(spec, (const char *)options + spec->offset, given->text[i]);
	}
	assert(options->tensors && options->tensor_size && options->loops);
}

/* Parses and checks like the command does for a job on the command line. */
static int parse_job(struct bench_options *options, struct options_given *typed, int argc,
		     char **argv)
{
	int rc;

	*options = bench_defaults;
	rc = options_parse(&bench_command, argc, argv, options, typed);
	if (rc)
		return rc;
	return bench_options_settle(options, typed, typed, NULL);
}

/* Parses a copy of the input and checks the result; `given` is indexed like the table. */
static int parse(const uint8_t *data, size_t nbytes, bool given[OPTIONS_MAX])
{
	char *text = strndup((const char *)data, nbytes), *argv[ARGUMENTS_MAX + 2];
	struct bench_options options;
	struct options_given typed;
	int rc;

	assert(text);
	times_said = 0;
	rc = parse_job(&options, &typed, cut(text, argv), argv);
	assert(rc == 0 || rc == OPTIONS_HELP || rc == -EINVAL);
	assert(times_said == (rc == -EINVAL));
	if (!rc)
		check_accepted(&options, &typed);
	for (unsigned i = 0; i < OPTIONS_MAX; i++)
		given[i] = typed.text[i];
	free(text);
	return rc;
}

/* The target's copies. */
size_t allocated_most(size_t nbytes)
{
	return 16 * nbytes + (64u << 10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes)
{
	bool once[OPTIONS_MAX], again[OPTIONS_MAX];

	/* Earlier parsing must have no effect. */
	assert(parse(data, nbytes, once) == parse(data, nbytes, again));
	assert(!memcmp(once, again, sizeof(once)));
	return 0;
}
