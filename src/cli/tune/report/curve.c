/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The curves of the report: bandwidth and latency over depth, at the chosen block size, one above
 * the other on the same depths, with the knee marked: the smallest depth that is within the
 * tolerance of the best. Depths are evenly spaced, as they double.
 */
#include <math.h>

#include "tune_report.h"

/* Of the drawing, in its own units; it is scaled to the page. */
#define WIDTH  400.0
#define HEIGHT 344.0
#define LEFT   46.0
#define RIGHT  364.0

struct panel {
	double top, bottom; /* on the drawing */
	double from, to;    /* values; of latencies, their logarithms */
};

struct curve {
	const struct tune_trial
		*at[TUNE_VALUES_MAX]; /* by depth of the space; NULL: not measured */
	unsigned n, measured, last;
	unsigned knee, chosen; /* indices */
	const struct tune_trial *best;
	bool others;
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

	share = share < 0 ? 0 : share > 1 ? 1 : share;
	return panel->bottom - share * (panel->bottom - panel->top);
}

static double half_of(const struct tune_trial *trial)
{
	return isfinite(trial->half_width) ? trial->half_width : 0;
}

static void find_knee(struct curve *curve, double tolerance)
{
	curve->knee = curve->n;
	for (unsigned i = curve->n; i-- > 0;)
		if (curve->at[i] && curve->at[i]->mean >= curve->best->mean * (1 - tolerance))
			curve->knee = i;
}

static void scale_bandwidth(const struct report_page *page, struct curve *curve)
{
	double most = 0;

	for (unsigned i = 0; i < curve->n; i++)
		if (curve->at[i])
			most = fmax(most, curve->at[i]->mean + half_of(curve->at[i]));
	most /= page->unit_bytes_per_s;
	curve->bandwidth =
		(struct panel){.top = 28, .bottom = 150, .to = most > 0 ? most * 1.05 : 1};
}

static void scale_latency(struct curve *curve)
{
	double least = INFINITY, most = 0;

	for (unsigned i = 0; i < curve->n; i++) {
		if (!curve->at[i] || !curve->at[i]->p50_ns)
			continue;
		least = fmin(least, (double)curve->at[i]->p50_ns);
		most = fmax(most, (double)curve->at[i]->p99_ns);
	}
	curve->latency = (struct panel){.top = 196, .bottom = 300};
	if (isfinite(least)) {
		curve->latency.from = log10(least * 0.8);
		curve->latency.to = log10(fmax(least, most) * 1.25);
	}
}

static struct curve look_over(const struct report_page *page)
{
	const struct tune_space *space = page->result->space;
	const struct tune_point *choice = &page->fixed->point;
	struct curve curve = {.n = space->nqueue_depths, .chosen = space->nqueue_depths};

	for (unsigned i = 0; i < curve.n; i++) {
		bool other;

		curve.at[i] = cell_trial(page, page->result->rules->objective, choice->block_size,
					 space->queue_depths[i], &other);
		curve.others |= other;
		if (space->queue_depths[i] == choice->queue_depth)
			curve.chosen = i;
		if (!curve.at[i])
			continue;
		curve.measured++;
		curve.last = i;
		if (!curve.best || curve.at[i]->mean > curve.best->mean)
			curve.best = curve.at[i];
	}
	if (curve.best) {
		find_knee(&curve, page->result->rules->tolerance);
		scale_bandwidth(page, &curve);
		scale_latency(&curve);
	}
	return curve;
}

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

static const char *axis_ns(double ns, char text[FIGURE])
{
	if (ns < 1e6)
		snprintf(text, FIGURE, "%g us", ns / 1e3);
	else if (ns < 1e9)
		snprintf(text, FIGURE, "%g ms", ns / 1e6);
	else
		snprintf(text, FIGURE, "%g s", ns / 1e9);
	return text;
}

/* Lines at 1, 2 and 5 of each power of ten, and at fewer where there are many powers. */
static void latency_axis(const struct report_page *page, const struct panel *panel)
{
	static const char *const digits[] = {"\1\2\5", "\1\3", "\1"};
	double decades = panel->to - panel->from;
	const char *each = digits[decades < 1.5 ? 0 : decades < 3 ? 1 : 2];
	char text[FIGURE];

	fputs("<text class=\"head\" x=\"0\" y=\"182\">Latency of an I/O (logarithmic)</text>\n",
	      page->out);
	for (int power = (int)floor(panel->from); power <= panel->to; power++)
		for (const char *digit = each; *digit; digit++) {
			double value = log10(*digit) + power;

			if (value < panel->from || value > panel->to)
				continue;
			grid_line(page, y_of(panel, value), axis_ns(*digit * pow(10, power), text));
		}
}

static void depth_axis(const struct report_page *page, const struct curve *curve)
{
	const uint32_t *depths = page->result->space->queue_depths;

	for (unsigned i = 0; i<curve->n; i += curve->n> 12 ? 2 : 1)
		fprintf(page->out, "<text class=\"middle\" x=\"%.1f\" y=\"318\">%u</text>\n",
			x_of(curve, i), depths[i]);
	fprintf(page->out, "<text class=\"middle\" x=\"%.1f\" y=\"338\">queue depth</text>\n",
		(LEFT + RIGHT) / 2);
}

/* Down through both panels; its name stands low in the upper one, where no curve is. */
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

static double bandwidth_value(const struct tune_trial *trial, double unit)
{
	return trial->mean / unit;
}

static double p50_value(const struct tune_trial *trial, double unit)
{
	(void)unit;
	return log10((double)(trial->p50_ns ? trial->p50_ns : 1));
}

static double p99_value(const struct tune_trial *trial, double unit)
{
	(void)unit;
	return log10((double)(trial->p99_ns ? trial->p99_ns : 1));
}

static void line(const struct report_page *page, const struct curve *curve,
		 const struct panel *panel, const char *name,
		 double (*value)(const struct tune_trial *trial, double unit))
{
	char move = 'M';

	fprintf(page->out, "<path class=\"line %s\" d=\"", name);
	for (unsigned i = 0; i < curve->n; i++) {
		if (!curve->at[i])
			continue;
		fprintf(page->out, "%c%.1f %.1f", move, x_of(curve, i),
			y_of(panel, value(curve->at[i], page->unit_bytes_per_s)));
		move = 'L';
	}
	fputs("\"/>\n", page->out);
}

/* Points with what each stands for, and in the upper panel the interval. */
static void points(const struct report_page *page, const struct curve *curve, unsigned i)
{
	const struct tune_trial *trial = curve->at[i];
	double x = x_of(curve, i), unit = page->unit_bytes_per_s;
	char p50[FIGURE], p99[FIGURE];

	fputs("<g><title>", page->out);
	page_point(page, &trial->point);
	fputs(": ", page->out);
	page_rate(page, trial);
	fprintf(page->out, ", p50 %s, p99 %s%s</title>", figure_ns(trial->p50_ns, p50),
		figure_ns(trial->p99_ns, p99), i == curve->chosen ? "; the choice" : "");
	fprintf(page->out,
		"<path class=\"whisker\" d=\"M%.1f %.1fV%.1f\"/>"
		"<circle class=\"bandwidth%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"%s\"/>",
		x, y_of(&curve->bandwidth, (trial->mean - half_of(trial)) / unit),
		y_of(&curve->bandwidth, (trial->mean + half_of(trial)) / unit),
		i == curve->chosen ? " choice" : "", x, y_of(&curve->bandwidth, trial->mean / unit),
		i == curve->chosen ? "6" : "3.5");
	if (trial->p50_ns)
		fprintf(page->out,
			"<circle class=\"p50\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>"
			"<circle class=\"p99\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>",
			x, y_of(&curve->latency, p50_value(trial, unit)), x,
			y_of(&curve->latency, p99_value(trial, unit)));
	fputs("</g>\n", page->out);
}

/* Each latency's name stands at the end of its line, and not upon the other's. */
static void latency_names(const struct report_page *page, const struct curve *curve)
{
	const struct tune_trial *last = curve->at[curve->last];
	double x = x_of(curve, curve->last) + 8;
	double p50 = y_of(&curve->latency, p50_value(last, 0));
	double p99 = y_of(&curve->latency, p99_value(last, 0));
	double apart = fmax(0, 14 - (p50 - p99)) / 2;

	fprintf(page->out,
		"<text class=\"p99\" x=\"%.1f\" y=\"%.1f\">p99</text>"
		"<text class=\"p50\" x=\"%.1f\" y=\"%.1f\">p50</text>\n",
		x, p99 + 4 - apart, x, p50 + 4 + apart);
}

static void drawing(const struct report_page *page, const struct curve *curve)
{
	const struct panel *bandwidth = &curve->bandwidth, *latency = &curve->latency;
	double best = curve->best->mean / page->unit_bytes_per_s;
	double within = y_of(bandwidth, best * (1 - page->result->rules->tolerance));

	fprintf(page->out,
		"<svg class=\"chart\" viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
		"aria-labelledby=\"curve-title\">\n<title id=\"curve-title\">Bandwidth and "
		"latency over queue depth; the figures are in the table of all that was "
		"tried</title>\n",
		WIDTH, HEIGHT);
	fprintf(page->out,
		"<rect class=\"band\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
		LEFT, y_of(bandwidth, best), RIGHT - LEFT, within - y_of(bandwidth, best));
	bandwidth_axis(page, bandwidth);
	depth_axis(page, curve);
	if (curve->measured > 1)
		knee(page, curve);
	line(page, curve, bandwidth, "bandwidth", bandwidth_value);
	if (latency->to > latency->from) {
		latency_axis(page, latency);
		line(page, curve, latency, "p50", p50_value);
		line(page, curve, latency, "p99", p99_value);
		latency_names(page, curve);
	}
	for (unsigned i = 0; i < curve->n; i++)
		if (curve->at[i])
			points(page, curve, i);
	fputs("</svg>\n", page->out);
}

static const char *behind_knee(const struct report_page *page, const struct curve *curve)
{
	double least = curve->best->mean * (1 - page->result->rules->tolerance);

	if (curve->knee == curve->last)
		return "Nothing deeper was measured, so it may lie beyond.";
	return curve->at[curve->last]->mean < least
		       ? "Deeper queues add latency, and in the end lose bandwidth."
		       : "Deeper queues add latency and next to no bandwidth.";
}

static void explain(const struct report_page *page, const struct curve *curve)
{
	const uint32_t *depths = page->result->space->queue_depths;
	char rate[FIGURE];

	if (curve->measured == 1) {
		fputs("<p>One depth alone was measured with this block, so there is no knee to "
		      "tell.</p>\n",
		      page->out);
		return;
	}
	fprintf(page->out,
		"<p>The <strong>knee is at depth %u</strong>: the smallest within %g %% of the "
		"most that this block reaches, %s %s. ",
		depths[curve->knee], page->result->rules->tolerance * 100,
		figure_rate(page, curve->best->mean, rate), page->unit);
	fputs(behind_knee(page, curve), page->out);
	if (page->result->outcome->chosen && curve->chosen != curve->knee)
		fprintf(page->out,
			" The choice, depth %u, comes of measuring finalists against each other in "
			"turn, which tells apart what single measurements can't.",
			depths[curve->chosen]);
	if (curve->others)
		fputs(" Some depths were measured with other settings alone; the table of all that "
		      "was tried has them.",
		      page->out);
	fputs("</p>\n", page->out);
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
