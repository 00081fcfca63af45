/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table for each job and result, with the base on the left, in 78 columns. A narrower terminal
 * gets change and verdict on a line of their own.
 */
#include <math.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/error.h"
#include "cli/compare/compare.h"

#define WIDTH  78
#define LABEL  15
#define NUMBER 32

static unsigned columns_of(FILE *file)
{
	struct winsize size;

	return !ioctl(fileno(file), TIOCGWINSZ, &size) && size.ws_col ? size.ws_col : WIDTH;
}

/* Right-aligned; only the end of a long label. */
static void put_label(FILE *file, const char *label)
{
	size_t n = 0;

	for (const char *c = label; *c; c++)
		n += (*c & 0xc0) != 0x80;
	for (size_t i = n; i < LABEL; i++)
		fputc(' ', file);
	for (size_t skip = n > LABEL ? n - LABEL + 2 : 0; skip; skip--)
		for (label++; (*label & 0xc0) == 0x80; label++)
			;
	fprintf(file, " %s%s", n > LABEL ? ".." : "", label);
}

/* In six columns. */
static const char *half_width(double percent, char text[NUMBER])
{
	if (!isfinite(percent))
		snprintf(text, NUMBER, "%6s", "");
	else if (percent >= 99.5)
		snprintf(text, NUMBER, "%6s", ">99%");
	else
		snprintf(text, NUMBER, "%*s±%.*f%%", percent < 9.95 ? 1 : 2, "",
			 percent < 9.95 ? 1 : 0, percent);
	return text;
}

static void put_value(FILE *file, const struct estimate *estimate, const struct metric *metric)
{
	double value = estimate->value * metric->scale;
	char text[NUMBER];

	if (!(value > 0))
		fprintf(file, " %9s%6s", "-", "");
	else
		fprintf(file,
			value < 99999.95 ? " %9.1f%s"
			: value < 1e9	 ? " %9.0f%s"
					 : " %9.3g%s",
			value, half_width(100 * estimate_half_width(estimate), text));
}

/* In eight columns; beyond five digits of per cent as a factor. */
static void put_change(FILE *file, const struct change *change, const struct metric *metric)
{
	double percent = change->percent;
	char text[NUMBER];

	if (percent < 999.95)
		fprintf(file, " %+6.1f%%", percent);
	else if (percent < 99999.5)
		fprintf(file, " %+6.0f%%", percent);
	else
		fprintf(file, "  x%.0e", percent / 100);
	fprintf(file, "%s  %s", half_width(change->half_width, text),
		verdict_name(metric, change->verdict));
}

static void put_metric(FILE *file, const struct comparison *comparison, unsigned side, unsigned job,
		       const struct metric *metric)
{
	struct estimate base = comparison_estimate(comparison, 0, job, metric);
	struct estimate other = comparison_estimate(comparison, side, job, metric);
	struct change change = comparison_change(comparison, side, job, metric);

	fprintf(file, "%-10s %-5s", metric->name, metric->unit);
	put_value(file, &base, metric);
	put_value(file, &other, metric);
	if (base.value > 0 && other.value > 0) {
		if (columns_of(file) < WIDTH)
			fputs("\n     ", file);
		put_change(file, &change, metric);
	}
	fputc('\n', file);
}

static void put_job(FILE *file, const struct comparison *comparison, unsigned side, unsigned job)
{
	fprintf(file, "\n%s\n%16s", comparison->jobs[job], "");
	put_label(file, comparison->sides[0].label);
	put_label(file, comparison->sides[side].label);
	fputs(columns_of(file) < WIDTH ? "\n" : "         change  verdict\n", file);
	for (unsigned i = 0; i < METRICS; i++)
		if (comparison_has(comparison, job, &metrics[i]))
			put_metric(file, comparison, side, job, &metrics[i]);
}

/* Wrapped at the terminal's width. */
static void put_notes(FILE *file, const struct comparison *comparison)
{
	unsigned columns = columns_of(file), at = 0;
	char notes[512], *rest = notes;

	comparison_notes(comparison, notes);
	fputc('\n', file);
	for (const char *word; (word = strsep(&rest, " ")); at += (unsigned)strlen(word) + 1) {
		bool breaks = at && at + strlen(word) >= (columns < WIDTH ? columns : WIDTH);

		fprintf(file, "%s%s", !at ? "" : breaks ? "\n" : " ", word);
		at = breaks ? 0 : at;
	}
	fputc('\n', file);
}

void compare_text(FILE *file, const struct comparison *comparison)
{
	for (unsigned side = 0; side < comparison->nsides; side++)
		fprintf(file, "%s  %s: %u run%s\n", side ? "    " : "base",
			comparison->sides[side].label, comparison->sides[side].nruns,
			plural(comparison->sides[side].nruns));
	for (unsigned job = 0; job < comparison->njobs; job++)
		for (unsigned side = 1; side < comparison->nsides; side++)
			put_job(file, comparison, side, job);
	put_notes(file, comparison);
}
