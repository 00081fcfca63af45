/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comparison as one page of HTML: a table for each job with a column for each result, and the
 * plots. Names go through html_text().
 */
#include <math.h>

#include "cli/compare/page.h"
#include "cli/html.h"
#include "nvswap.h"

/* Lines have colours after Okabe and Ito, for all kinds of colour vision, and dashes. */
static const char style[] =
	":root { --good: #0b6b3a; --bad: #a8270a; --c0: #0b1220; --c1: #0072b2; --c2: #c24e00;\n"
	" --c3: #00805d; --c4: #a84a83; --c5: #8a6a00; }\n"
	"@media screen and (prefers-color-scheme: dark) { :root { --good: #6fd49b; --bad: "
	"#ff9b85;\n"
	" --c0: #e8edf4; --c1: #56b4e9; --c2: #ff9d5c; --c3: #3fc79e; --c4: #e79cc7; --c5: "
	"#e8c44a; } }\n"
	"body { max-width: 1100px; } h1, h2 { margin-bottom: 8px; } h2 { margin-top: 36px; }\n"
	"p, footer { color: var(--soft); max-width: 46rem; }\n"
	".scroll { overflow-x: auto; background: var(--card); border-radius: 8px; }\n"
	"table { width: 100%; }\n"
	"th, td { padding: 6px 12px; text-align: right; border-top: 1px solid var(--rule);\n"
	" vertical-align: top; white-space: nowrap; }\n"
	"thead th { border-top: 0; white-space: normal; min-width: 7rem; }\n"
	"th:first-child { text-align: left; }\n"
	"th { font-weight: 600; } tbody th, td small { font-weight: 400; color: var(--soft); }\n"
	"td small { display: block; } .better { color: var(--good); } .worse { color: var(--bad); "
	"}\n"
	"td strong.better, td strong.worse { font-weight: 700; }\n"
	".plots { display: grid; gap: 20px 32px;\n"
	" grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }\n"
	"figcaption { font-weight: 600; }\n"
	"svg { max-width: 560px; }\n"
	"svg text { font-size: 13px; fill: var(--soft); font-variant-numeric: tabular-nums; }\n"
	".line { stroke-linejoin: round; }\n"
	".legend { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 8px 0; padding: 0;\n"
	" list-style: none; } .legend svg { display: inline-block; width: 30px; height: 10px;\n"
	" margin-right: 6px; }\n"
	".s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); stroke-dasharray: 7 3; }\n"
	".s2 { stroke: var(--c2); stroke-dasharray: 2 3; }\n"
	".s3 { stroke: var(--c3); stroke-dasharray: 9 3 2 3; }\n"
	".s4 { stroke: var(--c4); stroke-dasharray: 12 4; }\n"
	".s5 { stroke: var(--c5); stroke-dasharray: 4 2 1 2; }\n";

static void put_figure(FILE *file, double value)
{
	fprintf(file, value < 1e5 ? "%.1f" : value < 1e15 ? "%.0f" : "%.3g", value);
}

static void put_half_width(FILE *file, double percent)
{
	if (isfinite(percent))
		fprintf(file, " ±%.*f %%", percent < 9.95, percent);
}

static void put_cell(FILE *file, const struct comparison *comparison, unsigned side, unsigned job,
		     const struct metric *metric)
{
	static const char *const classes[] = {"", "", " class=\"better\"", " class=\"worse\""};
	struct estimate estimate = comparison_estimate(comparison, side, job, metric);
	struct change change;

	if (!(estimate.value > 0)) {
		fputs("<td>-</td>", file);
		return;
	}
	fputs("<td>", file);
	put_figure(file, estimate.value * metric->scale);
	fprintf(file, " %s<small>", metric->unit);
	put_half_width(file, 100 * estimate_half_width(&estimate));
	fputs("</small>", file);
	change = comparison_change(comparison, side, job, metric);
	if (side && isfinite(change.percent)) {
		fprintf(file, "<strong%s>%s</strong><small>%+.*f %%", classes[change.verdict],
			verdict_name(metric, change.verdict), fabs(change.percent) < 999.95,
			change.percent);
		put_half_width(file, change.half_width);
		fputs("</small>", file);
	}
	fputs("</td>", file);
}

static void put_table(FILE *file, const struct comparison *comparison, unsigned job)
{
	fputs("<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr><th></th>", file);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		fputs("<th scope=\"col\">", file);
		html_text(file, comparison->sides[side].label);
		fprintf(file, "%s</th>", side ? "" : " (base)");
	}
	fputs("</tr></thead>\n<tbody>\n", file);
	for (unsigned i = 0; i < METRICS; i++) {
		if (!comparison_has(comparison, job, &metrics[i]))
			continue;
		fprintf(file, "<tr><th scope=\"row\">%s</th>", metrics[i].name);
		for (unsigned side = 0; side < comparison->nsides; side++)
			put_cell(file, comparison, side, job, &metrics[i]);
		fputs("</tr>\n", file);
	}
	fputs("</tbody>\n</table>\n</div>\n", file);
}

void compare_page(FILE *file, const struct comparison *comparison)
{
	char notes[512];

	html_begin(file);
	fputs("nvswap compare", file);
	html_body(file, style);
	fputs("<h1>", file);
	for (unsigned side = 0; side < comparison->nsides; side++) {
		fputs(!side ? "" : side == 1 ? " against " : ", ", file);
		html_text(file, comparison->sides[side].label);
	}
	comparison_notes(comparison, notes);
	fprintf(file, "</h1>\n<p>%s</p>\n<main>\n", notes);
	for (unsigned job = 0; job < comparison->njobs; job++) {
		fputs("<section>\n<h2>", file);
		html_text(file, comparison->jobs[job]);
		fputs("</h2>\n", file);
		put_table(file, comparison, job);
		page_plots(file, comparison, job);
		fputs("</section>\n", file);
	}
	fprintf(file, "</main>\n<footer>nvswap %s</footer>\n</body>\n</html>\n", nvs_version());
}
