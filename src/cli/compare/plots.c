/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plots of a job's latencies in each direction, with a line for each result: histograms, from the
 * bins of json+, and percentiles. Times have logarithmic scales.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/compare/page.h"
#include "cli/html.h"

#define WIDTH	440.0
#define HEIGHT	250.0
#define LEFT	56.0
#define RIGHT	416.0
#define TOP	14.0
#define BOTTOM	212.0
#define COLUMNS 96u
#define STYLES	6u
/* Bins are 1/64 of a power of two wide: narrower columns than two bins would stay empty. */
#define COLUMN_LEAST (2 * 0.30103 / 64)
#define POINTS	     64u

/* Positions of 0..1 on each axis. */
static double x_of(double share)
{
	return LEFT + share * (RIGHT - LEFT);
}

static double y_of(double share)
{
	return BOTTOM - share * (BOTTOM - TOP);
}

/* log10 of nanoseconds */
struct span {
	double from, to;
};

static double place(const struct span *span, double at)
{
	return (at - span->from) / (span->to - span->from);
}

static void widen(struct span *span, double ns)
{
	span->from = fmin(span->from, log10(ns));
	span->to = fmax(span->to, log10(ns));
}

/* A decimal key and a number, both above 0. */
static bool read_bin(const struct json_value *bin, double *ns, double *count)
{
	char *end;

	*ns = strtod(bin->key, &end);
	return *end == '\0' && strspn(bin->key, "0123456789.") == bin->key_length && *ns > 0 &&
	       isfinite(*ns) && bin->type == JSON_NUMBER && !json_read_real(bin, count) &&
	       *count > 0;
}

/* Calls fn for each bin or percentile of all runs of a side. */
typedef void bin_fn(void *arg, double key, double value);
static void each_bin(const struct compare_side *side, unsigned job, enum nvs_direction direction,
		     const char *member, bin_fn *fn, void *arg)
{
	double key, value;

	for (unsigned i = 0; i < side->nruns; i++) {
		const struct json_value *bins = results_latency(side->runs[i].jobs[job], direction,
								member);

		if (!bins || bins->type != JSON_OBJECT)
			continue;
		for (const struct json_value *bin = bins->first; bin; bin = bin->next)
			if (read_bin(bin, &key, &value))
				fn(arg, key, value);
	}
}

/* ---- Axes */

static const char *axis_ns(double ns, char text[32])
{
	static const char *const units[] = {"ns", "us", "ms", "s"};
	unsigned unit = ns < 1e3 ? 0 : ns < 1e6 ? 1 : ns < 1e9 ? 2 : 3;

	snprintf(text, 32, "%g %s", ns / pow(1e3, unit), units[unit]);
	return text;
}

/* Lines at 1, 2 and 5 of each power of ten; fewer if there are many powers. */
static void time_axis(FILE *file, const struct span *span, bool upwards)
{
	static const char *const digits[] = {"\1\2\5", "\1\3", "\1"};
	double powers = span->to - span->from;
	const char *each = digits[powers < 1.2 ? 0 : powers < 3 ? 1 : 2];
	char text[32];

	for (int power = (int)floor(span->from); power <= span->to; power++)
		for (const char *digit = each; *digit; digit++) {
			double share = place(span, log10(*digit) + power);

			axis_ns(*digit * pow(10, power), text);
			if (share < 0 || share > 1)
				continue;
			if (upwards)
				fprintf(file,
					"<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text "
					"x=\"%.1f\" "
					"y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
					LEFT, y_of(share), RIGHT, LEFT - 5, y_of(share) + 4, text);
			else
				fprintf(file,
					"<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text "
					"x=\"%.1f\" "
					"y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
					x_of(share), TOP, BOTTOM, x_of(share), BOTTOM + 17, text);
		}
}

static void begin_plot(FILE *file, const char *what, enum nvs_direction direction)
{
	static const char *const ways[] = {[NVS_READ] = "Reads", [NVS_WRITE] = "Writes"};

	fprintf(file,
		"<figure>\n<figcaption>%s: %s</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" "
		"role=\"img\" aria-label=\"%s: %s of completion latency\">\n",
		ways[direction], what, WIDTH, HEIGHT, ways[direction], what);
}

static void end_plot(FILE *file, const char *below)
{
	fprintf(file,
		"<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text x=\"%.1f\" y=\"%.1f\" "
		"text-anchor=\"middle\">%s</text>\n</svg>\n</figure>\n",
		LEFT, BOTTOM, RIGHT, (LEFT + RIGHT) / 2, BOTTOM + 34, below);
}

/* ---- Histograms */

struct histogram {
	struct span span;
	unsigned columns;
	double counts[COLUMNS], all;
};

static void span_of_bin(void *arg, double ns, double count)
{
	struct histogram *histogram = arg;

	(void)count;
	widen(&histogram->span, ns);
}

static void count_bin(void *arg, double ns, double count)
{
	struct histogram *histogram = arg;
	double share = place(&histogram->span, log10(ns));

	histogram->counts[(unsigned)fmin(share * histogram->columns, histogram->columns - 1)] +=
		count;
	histogram->all += count;
}

static void count_side(struct histogram *histogram, const struct compare_side *side, unsigned job,
		       enum nvs_direction direction)
{
	memset(histogram->counts, 0, sizeof(histogram->counts));
	histogram->all = 0;
	each_bin(side, job, direction, "bins", count_bin, histogram);
}

static double highest_share(const struct histogram *histogram)
{
	double most = 0;

	for (unsigned i = 0; i < histogram->columns && histogram->all > 0; i++)
		most = fmax(most, histogram->counts[i] / histogram->all);
	return most;
}

/* `most` is the highest share of all results. */
static void draw_histogram(FILE *file, const struct histogram *histogram, double most,
			   unsigned side)
{
	if (!(histogram->all > 0))
		return;
	fprintf(file, "<path class=\"line s%u\" d=\"M%.1f %.1f", side % STYLES, LEFT, BOTTOM);
	for (unsigned i = 0; i < histogram->columns; i++)
		fprintf(file, "V%.1fH%.1f", y_of(histogram->counts[i] / histogram->all / most),
			x_of((i + 1.0) / histogram->columns));
	fprintf(file, "V%.1f\"/>\n", BOTTOM);
}

/* Returns whether there was any histogram. */
static bool plot_histograms(FILE *file, const struct comparison *comparison, unsigned job,
			    enum nvs_direction direction)
{
	struct histogram histogram = {.span = {INFINITY, -INFINITY}};
	double most = 0;

	for (unsigned side = 0; side < comparison->nsides; side++)
		each_bin(&comparison->sides[side], job, direction, "bins", span_of_bin, &histogram);
	if (!(histogram.span.to >= histogram.span.from))
		return false;
	histogram.span.from -= COLUMN_LEAST;
	histogram.span.to += COLUMN_LEAST;
	histogram.columns = (unsigned)fmin((histogram.span.to - histogram.span.from) / COLUMN_LEAST,
					   COLUMNS);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		count_side(&histogram, &comparison->sides[side], job, direction);
		most = fmax(most, highest_share(&histogram));
	}
	begin_plot(file, "histogram", direction);
	time_axis(file, &histogram.span, false);
	fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.1f %%</text>\n", LEFT - 5,
		TOP + 8, 100 * most);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		count_side(&histogram, &comparison->sides[side], job, direction);
		draw_histogram(file, &histogram, most, side);
	}
	end_plot(file, "completion latency; share of the I/Os");
	return true;
}

/* ---- Percentiles */

/* Means over the runs of a side; 100 per cent is infinitely far. */
struct curve {
	struct span span;
	unsigned n;
	double percentile[POINTS], sum_ns[POINTS], runs[POINTS];
};

/* 90 is 1, 99 is 2, 99.9 is 3. */
static double nines(double percentile)
{
	return -log10(1 - percentile / 100);
}

static void add_point(void *arg, double percentile, double ns)
{
	struct curve *curve = arg;
	unsigned i = 0;

	while (i < curve->n && curve->percentile[i] != percentile)
		i++;
	if (i == POINTS || percentile >= 100)
		return;
	if (i == curve->n) {
		curve->n++;
		curve->percentile[i] = percentile;
		curve->sum_ns[i] = curve->runs[i] = 0;
	}
	curve->sum_ns[i] += ns;
	curve->runs[i]++;
	widen(&curve->span, ns);
}

static void draw_curve(FILE *file, const struct curve *curve, double most_nines, unsigned side)
{
	if (!curve->n)
		return;
	fprintf(file, "<path class=\"line s%u\" d=\"", side % STYLES);
	for (unsigned i = 0; i < curve->n; i++)
		fprintf(file, "%c%.1f %.1f", i ? 'L' : 'M',
			x_of(nines(curve->percentile[i]) / most_nines),
			y_of(place(&curve->span, log10(curve->sum_ns[i] / curve->runs[i]))));
	fputs("\"/>\n", file);
}

static void percentile_axis(FILE *file, double most_nines)
{
	static const double at[] = {50, 90, 99, 99.9, 99.99, 99.999};

	for (unsigned i = 0; i < sizeof(at) / sizeof(*at); i++)
		if (nines(at[i]) <= most_nines * 1.0001)
			fprintf(file,
				"<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text x=\"%.1f\" "
				"y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
				x_of(nines(at[i]) / most_nines), TOP, BOTTOM,
				x_of(nines(at[i]) / most_nines), BOTTOM + 17, at[i]);
}

static void plot_percentiles(FILE *file, const struct comparison *comparison, unsigned job,
			     enum nvs_direction direction)
{
	struct curve curve = {.span = {INFINITY, -INFINITY}};
	double most_nines = 0;

	for (unsigned side = 0; side < comparison->nsides; side++)
		each_bin(&comparison->sides[side], job, direction, "percentile", add_point, &curve);
	for (unsigned i = 0; i < curve.n; i++)
		most_nines = fmax(most_nines, nines(curve.percentile[i]));
	if (curve.n < 2)
		return;
	curve.span.from -= 0.05;
	curve.span.to += 0.05;
	begin_plot(file, "percentiles", direction);
	time_axis(file, &curve.span, true);
	percentile_axis(file, most_nines);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		curve.n = 0;
		each_bin(&comparison->sides[side], job, direction, "percentile", add_point, &curve);
		draw_curve(file, &curve, most_nines, side);
	}
	end_plot(file, "percentile of completion latency");
}

static void legend(FILE *file, const struct comparison *comparison)
{
	fputs("<ul class=\"legend\">\n", file);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		fprintf(file,
			"<li><svg viewBox=\"0 0 30 10\" aria-hidden=\"true\"><path class=\"line "
			"s%u\" d=\"M0 5H30\"/></svg>",
			side % STYLES);
		html_text(file, comparison->sides[side].label);
		fputs("</li>\n", file);
	}
	fputs("</ul>\n", file);
}

void page_plots(FILE *file, const struct comparison *comparison, unsigned job)
{
	bool any = false;

	legend(file, comparison);
	fputs("<div class=\"plots\">\n", file);
	for (int d = NVS_READ; d <= NVS_WRITE; d++) {
		any |= plot_histograms(file, comparison, job, d);
		plot_percentiles(file, comparison, job, d);
	}
	fputs("</div>\n", file);
	if (!any)
		fputs("<p>These results have no histograms: <code>--output-format json+</code> "
		      "writes them.</p>\n",
		      file);
}
