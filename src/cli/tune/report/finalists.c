/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The finalists of the report: each one's ratio to the fastest as a dot with its interval, on a
 * common scale.
 */
#include <math.h>

#include "cli/tune/report/report.h"

#define WIDTH 400.0
#define EDGE  14.0

struct scale {
	double from, to; /* relative to the fastest */
};

static double x_of(const struct scale *scale, double share)
{
	return EDGE + (share - scale->from) / (scale->to - scale->from) * (WIDTH - 2 * EDGE);
}

static bool is_shown(const struct tune_trial *trial)
{
	return trial->finalist && trial->to_best > 0 && isfinite(trial->to_best);
}

static double half_of(const struct tune_trial *trial)
{
	return isfinite(trial->to_best_half_width) ? trial->to_best_half_width : 0;
}

static struct scale look_over(const struct report_page *page)
{
	const struct tune_outcome *outcome = page->result->outcome;
	struct scale scale = {1 - page->result->rules->tolerance, 1};
	double margin;

	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];

		if (!is_shown(trial))
			continue;
		scale.from = fmin(scale.from, trial->to_best - half_of(trial));
		scale.to = fmax(scale.to, trial->to_best + half_of(trial));
	}
	margin = fmax((scale.to - scale.from) * 0.05, 0.001);
	return (struct scale){scale.from - margin, scale.to + margin};
}

static void band(const struct report_page *page, const struct scale *scale, double height)
{
	double from = x_of(scale, 1 - page->result->rules->tolerance);

	fprintf(page->out,
		"<rect class=\"band\" x=\"%.1f\" y=\"0\" width=\"%.1f\" height=\"%.0f\"/>"
		"<path class=\"grid\" d=\"M%.1f 0V%.0f\"/>",
		from, x_of(scale, 1) - from, height, x_of(scale, 1), height);
}

static void finalist(const struct report_page *page, const struct scale *scale,
		     const struct tune_trial *trial)
{
	bool chosen = trial == page->result->outcome->chosen;
	double half = half_of(trial);

	fprintf(page->out, "<li%s><p><span>%s", chosen ? " class=\"choice\"" : "",
		chosen ? "<span class=\"tag\">chosen</span> " : "");
	page_point(page, &trial->point);
	fputs("</span> <span class=\"figure\">", page->out);
	page_rate(page, trial);
	fprintf(page->out,
		"</span></p>\n<svg viewBox=\"0 0 %.0f 16\" role=\"img\" aria-label=\"%.1f %% "
		"&#177; "
		"%.1f of the fastest\"><title>%.1f %% &#177; %.1f of the fastest</title>",
		WIDTH, trial->to_best * 100, half * 100, trial->to_best * 100, half * 100);
	band(page, scale, 16);
	fprintf(page->out,
		"<path class=\"whisker\" d=\"M%.1f 8H%.1fM%.1f 4v8M%.1f 4v8\"/>"
		"<circle class=\"bandwidth\" cx=\"%.1f\" cy=\"8\" r=\"%s\"/></svg></li>\n",
		x_of(scale, trial->to_best - half), x_of(scale, trial->to_best + half),
		x_of(scale, trial->to_best - half), x_of(scale, trial->to_best + half),
		x_of(scale, trial->to_best), chosen ? "5" : "4");
}

static void axis(const struct report_page *page, const struct scale *scale)
{
	double step = round_step(scale->to - scale->from, 6);

	fprintf(page->out,
		"<svg class=\"chart axis\" viewBox=\"0 0 %.0f 40\" role=\"img\" "
		"aria-label=\"Scale, "
		"in per cent of the fastest\">",
		WIDTH);
	for (int tick = (int)ceil(scale->from / step); tick * step <= scale->to; tick++)
		fprintf(page->out,
			"<path class=\"grid\" d=\"M%.1f 0v4\"/>"
			"<text class=\"middle\" x=\"%.1f\" y=\"16\">%g</text>",
			x_of(scale, tick * step), x_of(scale, tick * step), tick * step * 100);
	fprintf(page->out,
		"<text class=\"middle\" x=\"%.0f\" y=\"34\">%% of the fastest</text></svg>\n",
		WIDTH / 2);
}

void page_finalists(const struct report_page *page)
{
	const struct tune_outcome *outcome = page->result->outcome;
	struct scale scale = look_over(page);
	unsigned n = 0;

	for (size_t i = 0; i < outcome->n; i++)
		n += is_shown(page->sorted[i]);
	if (!n)
		return;
	fprintf(page->out,
		"<section aria-labelledby=\"finalists\">\n<h2 id=\"finalists\">Finalists</h2>\n"
		"<p>Measured in turn against the fastest, with 95 %% intervals. The band is the "
		"tolerance, %g %%. The choice is the point with the fewest bytes in flight that is "
		"indistinguishable from it; settings leave their defaults only if that is "
		"certainly "
		"faster.</p>\n<ul class=\"finalists\">\n",
		page->result->rules->tolerance * 100);
	for (size_t i = 0; i < outcome->n; i++)
		if (is_shown(page->sorted[i]))
			finalist(page, &scale, page->sorted[i]);
	fputs("</ul>\n", page->out);
	axis(page, &scale);
	fputs("</section>\n", page->out);
}
