/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curves of the report: bandwidth and latency over depth, at the chosen block size. A point
 * measured once is hollow and unconnected, because it can be due to chance; the knee is the
 * smallest depth within the tolerance of the best, of the points measured more than once.
 */
#include <math.h>

#include "cli/tune/report/report.h"

/* Units of the drawing, which is scaled to the page. */
#define WIDTH  400.0
#define HEIGHT 344.0
#define LEFT   46.0
#define RIGHT  364.0

struct panel {
	double top, bottom; /* in the drawing */
	double from, to;    /* values; logarithms of latencies */
};

struct curve {
	const struct tune_trial *at[TUNE_VALUES_MAX]; /* by depth; NULL: not measured */
	unsigned n, measured, last, knee, chosen;     /* indices, n for none */
	const struct tune_trial *best;
	bool others, once; /* some points have other settings, or a single round */
	struct panel bandwidth, latency;
};

static double x_of(const struct curve *curve, unsigned i)
{
	return LEFT + 12 +
	       (curve->n > 1 ? (RIGHT - LEFT - 24) * i / (curve->n - 1) : (RIGHT - LEFT) / 2);
}

static double y_of(const struct panel *panel, double value)
{
	double share = (value - panel->from) / (panel->to - panel->from);

	return panel->bottom - fmin(fmax(share, 0), 1) * (panel->bottom - panel->top);
}

static double half_of(const struct tune_trial *trial)
{
	return trial->rounds > 1 && isfinite(trial->half_width) ? trial->half_width : 0;
}

static double log_ns(uint64_t ns)
{
	return log10((double)(ns ? ns : 1));
}

static bool is_better(const struct tune_trial *trial, const struct tune_trial *best)
{
	if (!best || (trial->rounds > 1) != (best->rounds > 1))
		return !best || trial->rounds > 1;
	return trial->mean > best->mean;
}

static void scale(const struct report_page *page, struct curve *curve)
{
	double most = 0, least = INFINITY, longest = 0;

	for (unsigned i = 0; i < curve->n; i++) {
		const struct tune_trial *trial = curve->at[i];

		if (!trial)
			continue;
		most = fmax(most, (trial->mean + half_of(trial)) / page->unit_bytes_per_s);
		if (trial->p50_ns) {
			least = fmin(least, (double)trial->p50_ns);
			longest = fmax(longest, (double)trial->p99_ns);
		}
	}
	curve->bandwidth = (struct panel){28, 150, 0, most > 0 ? most * 1.05 : 1};
	curve->latency = (struct panel){196, 300, 0, 0};
	if (isfinite(least)) {
		curve->latency.from = log10(least * 0.8);
		curve->latency.to = log10(fmax(least, longest) * 1.25);
	}
}

static struct curve look_over(const struct report_page *page)
{
	const struct tune_space *space = page->result->space;
	const struct tune_point *choice = &page->fixed->point;
	struct curve curve = {.n = space->nqueue_depths};

	curve.chosen = curve.knee = curve.n;
	for (unsigned i = 0; i < curve.n; i++) {
		const struct tune_trial *trial;
		bool other;

		trial = curve.at[i] = cell_trial(page, page->result->rules->objective,
						 choice->block_size, space->queue_depths[i],
						 &other);
		if (space->queue_depths[i] == choice->queue_depth)
			curve.chosen = i;
		if (!trial)
			continue;
		curve.others |= other;
		curve.once |= trial->rounds == 1;
		curve.measured++;
		curve.last = i;
		if (is_better(trial, curve.best))
			curve.best = trial;
	}
	for (unsigned i = curve.n; i-- > 0;)
		if (curve.at[i] && (curve.at[i]->rounds > 1 || curve.best->rounds == 1) &&
		    curve.at[i]->mean >= curve.best->mean * (1 - page->result->rules->tolerance))
			curve.knee = i;
	scale(page, &curve);
	return curve;
}

/* ---- Axes ---- */

static void grid_line(const struct report_page *page, double y, const char *label)
{
	fprintf(page->out,
		"<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>"
		"<text class=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
		LEFT, y, RIGHT, LEFT - 6, y + 4, label);
}

static void bandwidth_axis(const struct report_page *page, const struct panel *panel)
{
	double step = round_step(panel->to, 5);
	char text[FIGURE];

	fprintf(page->out, "<text class=\"head\" x=\"0\" y=\"14\">Bandwidth, %s</text>\n",
		page->unit);
	for (unsigned i = 0; i * step <= panel->to; i++) {
		snprintf(text, sizeof(text), "%g", i * step);
		grid_line(page, y_of(panel, i * step), text);
	}
}

/* Lines at 1, 2 and 5 of each power of ten, fewer for many powers. */
static void latency_axis(const struct report_page *page, const struct panel *panel)
{
	static const char *const digits[] = {"\1\2\5", "\1\3", "\1"};
	double decades = panel->to - panel->from;
	char text[FIGURE];

	fputs("<text class=\"head\" x=\"0\" y=\"182\">Latency of an I/O (logarithmic)</text>\n",
	      page->out);
	for (int power = (int)floor(panel->from); power <= panel->to; power++)
		for (const char *digit = digits[decades < 1.5 ? 0
						: decades < 3 ? 1
							      : 2];
		     *digit; digit++) {
			double value = log10(*digit) + power, ns = *digit * pow(10, power);
			bool is_ms = ns >= 1e6;

			if (value < panel->from || value > panel->to)
				continue;
			snprintf(text, sizeof(text), "%g %s", ns / (is_ms ? 1e6 : 1e3),
				 is_ms ? "ms" : "us");
			grid_line(page, y_of(panel, value), text);
		}
}

static void depth_axis(const struct report_page *page, const struct curve *curve)
{
	unsigned every = curve->n > 12 ? 2 : 1;

	for (unsigned i = 0; i < curve->n; i += every)
		fprintf(page->out, "<text class=\"middle\" x=\"%.1f\" y=\"318\">%u</text>\n",
			x_of(curve, i), page->result->space->queue_depths[i]);
	fprintf(page->out, "<text class=\"middle\" x=\"%.1f\" y=\"338\">queue depth</text>\n",
		(LEFT + RIGHT) / 2);
}

/*
 * A line through both panels, labelled at the bottom of the upper one, which curves rarely reach.
 */
static void knee(const struct report_page *page, const struct curve *curve)
{
	double x = x_of(curve, curve->knee);
	bool right = x < (LEFT + RIGHT) / 2;

	fprintf(page->out,
		"<path class=\"knee\" d=\"M%.1f %.1fV%.1fM%.1f %.1fV%.1f\"/>"
		"<text class=\"mark%s\" x=\"%.1f\" y=\"%.1f\">knee: depth %u</text>\n",
		x, curve->bandwidth.top, curve->bandwidth.bottom, x, curve->latency.top,
		curve->latency.bottom, right ? "" : " end", x + (right ? 6 : -6),
		curve->bandwidth.bottom - 8, page->result->space->queue_depths[curve->knee]);
}

/* ---- Curves ---- */

enum value { BANDWIDTH, P50, P99 };

static double value_y(const struct report_page *page, const struct curve *curve, unsigned i,
		      enum value value)
{
	const struct tune_trial *trial = curve->at[i];

	if (value == BANDWIDTH)
		return y_of(&curve->bandwidth, trial->mean / page->unit_bytes_per_s);
	return y_of(&curve->latency, log_ns(value == P50 ? trial->p50_ns : trial->p99_ns));
}

static void line(const struct report_page *page, const struct curve *curve, enum value value,
		 const char *name)
{
	bool joined = false;

	fprintf(page->out, "<path class=\"line %s\" d=\"M0 0", name);
	for (unsigned i = 0; i < curve->n; i++) {
		if (!curve->at[i])
			continue;
		if (curve->at[i]->rounds > 1)
			fprintf(page->out, "%c%.1f %.1f", joined ? 'L' : 'M', x_of(curve, i),
				value_y(page, curve, i, value));
		joined = curve->at[i]->rounds > 1;
	}
	fputs("\"/>\n", page->out);
}

static void point(const struct report_page *page, const struct curve *curve, unsigned i)
{
	static const char *const names[] = {"bandwidth", "p50", "p99"};
	const struct tune_trial *trial = curve->at[i];
	double unit = page->unit_bytes_per_s;
	char p50[FIGURE], p99[FIGURE];

	fputs("<g><title>", page->out);
	page_point(page, &trial->point);
	fputs(": ", page->out);
	page_rate(page, trial);
	fprintf(page->out, ", p50 %s, p99 %s%s%s</title>", figure_ns(trial->p50_ns, p50),
		figure_ns(trial->p99_ns, p99), trial->rounds == 1 ? "; measured once" : "",
		i == curve->chosen ? "; the choice" : "");
	fprintf(page->out, "<path class=\"whisker\" d=\"M%.1f %.1fV%.1f\"/>", x_of(curve, i),
		y_of(&curve->bandwidth, (trial->mean - half_of(trial)) / unit),
		y_of(&curve->bandwidth, (trial->mean + half_of(trial)) / unit));
	for (enum value value = BANDWIDTH; value <= (trial->p50_ns ? P99 : BANDWIDTH); value++) {
		bool choice = value == BANDWIDTH && i == curve->chosen;

		fprintf(page->out, "<circle class=\"%s%s%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%d\"/>",
			names[value], choice ? " choice" : "", trial->rounds == 1 ? " once" : "",
			x_of(curve, i), value_y(page, curve, i, value), choice ? 6 : 3);
	}
	fputs("</g>\n", page->out);
}

/* Each label is at the end of its line, apart from the other. */
static void latency_names(const struct report_page *page, const struct curve *curve)
{
	double x = x_of(curve, curve->last) + 8;
	double p50 = value_y(page, curve, curve->last, P50);
	double p99 = value_y(page, curve, curve->last, P99), apart = fmax(0, 14 - (p50 - p99)) / 2;

	fprintf(page->out,
		"<text class=\"p99\" x=\"%.1f\" y=\"%.1f\">p99</text>"
		"<text class=\"p50\" x=\"%.1f\" y=\"%.1f\">p50</text>\n",
		x, p99 + 4 - apart, x, p50 + 4 + apart);
}

static void drawing(const struct report_page *page, const struct curve *curve)
{
	double best = curve->best->mean / page->unit_bytes_per_s;
	double top = y_of(&curve->bandwidth, best);

	fprintf(page->out,
		"<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
		"aria-labelledby=\"curve-title\">\n<title id=\"curve-title\">Bandwidth and "
		"latency over queue depth; the table of all that was tried has the "
		"figures</title>\n"
		"<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
		WIDTH, HEIGHT, LEFT, top, RIGHT - LEFT,
		y_of(&curve->bandwidth, best * (1 - page->result->rules->tolerance)) - top);
	bandwidth_axis(page, &curve->bandwidth);
	depth_axis(page, curve);
	if (curve->measured > 1)
		knee(page, curve);
	line(page, curve, BANDWIDTH, "bandwidth");
	if (curve->latency.to > curve->latency.from) {
		latency_axis(page, &curve->latency);
		line(page, curve, P50, "p50");
		line(page, curve, P99, "p99");
		latency_names(page, curve);
	}
	for (unsigned i = 0; i < curve->n; i++)
		if (curve->at[i])
			point(page, curve, i);
	fputs("</svg>\n", page->out);
}

/* ---- Caption ---- */

static const char *beyond_knee(const struct report_page *page, const struct curve *curve)
{
	double least = curve->best->mean * (1 - page->result->rules->tolerance);

	if (curve->knee == curve->last)
		return "No deeper queue was measured, so it may lie beyond.";
	return curve->at[curve->last]->mean < least
		       ? "Deeper queues add latency, and in the end lose bandwidth."
		       : "Deeper queues add latency and next to no bandwidth.";
}

static void explain(const struct report_page *page, const struct curve *curve)
{
	const uint32_t *depths = page->result->space->queue_depths;
	char rate[FIGURE];

	if (curve->measured == 1) {
		fputs("<p>Only one depth was measured with this block, so the knee is "
		      "unknown.</p>\n",
		      page->out);
		return;
	}
	fprintf(page->out,
		"<p>The <strong>knee is at depth %u</strong>: the smallest within %g %% of the "
		"most that this block reaches, %s %s. %s",
		depths[curve->knee], page->result->rules->tolerance * 100,
		figure_rate(page, curve->best->mean, rate), page->unit, beyond_knee(page, curve));
	if (page->result->outcome->chosen && curve->chosen != curve->knee)
		fprintf(page->out,
			" The choice, depth %u, comes from measuring the finalists in turn, which "
			"is more exact than these means.",
			depths[curve->chosen]);
	fprintf(page->out, "%s%s</p>\n",
		curve->once ? " A hollow point was measured once: chance may have moved it." : "",
		curve->others ? " Some depths were measured with other settings only; the table of "
				"all that was tried has them."
			      : "");
}

void page_curve(const struct report_page *page)
{
	struct curve curve = look_over(page);
	char size[FIGURE];

	if (!curve.best)
		return;
	fprintf(page->out,
		"<section aria-labelledby=\"curve\">\n"
		"<h2 id=\"curve\">Depth, at blocks of %s</h2>\n",
		figure_size(page->fixed->point.block_size, size));
	explain(page, &curve);
	drawing(page, &curve);
	fputs("</section>\n", page->out);
}
