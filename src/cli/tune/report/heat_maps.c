/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heat maps of the report: bandwidth over block size and depth, for each measured objective.
 * They are tables, which screen readers can read; the colours are ten equal steps of one hue, from
 * zero to the maximum of the map.
 */
#include <math.h>

#include "base/error.h"
#include "cli/tune/report/report.h"

#define COLOURS 10

struct map {
	enum tune_objective objective;
	const struct tune_trial *best; /* NULL: no measurement */
	bool others;		       /* some cells have other settings than the choice */
};

static struct map look_over(const struct report_page *page, enum tune_objective objective)
{
	const struct tune_space *space = page->result->space;
	struct map map = {.objective = objective};

	for (unsigned b = 0; b < space->nblock_sizes; b++)
		for (unsigned d = 0; d < space->nqueue_depths; d++) {
			bool other;
			const struct tune_trial *trial = cell_trial(page, objective,
								    space->block_sizes[b],
								    space->queue_depths[d], &other);

			if (trial && (!map.best || trial->mean > map.best->mean))
				map.best = trial;
			map.others |= other;
		}
	return map;
}

static unsigned colour(const struct map *map, double mean)
{
	double share = map->best->mean > 0 ? mean / map->best->mean : 0;

	return share >= 1 ? COLOURS - 1 : share > 0 ? (unsigned)(share * COLOURS) : 0;
}

static void cell(const struct report_page *page, const struct map *map, uint32_t block_size,
		 uint32_t queue_depth)
{
	const struct tune_point *choice = page->result->outcome->chosen
						  ? &page->result->outcome->chosen->point
						  : NULL;
	bool chosen = choice && choice->block_size == block_size &&
		      choice->queue_depth == queue_depth;
	bool other;
	const struct tune_trial *trial = cell_trial(page, map->objective, block_size, queue_depth,
						    &other);
	char text[FIGURE];

	if (!trial) {
		fprintf(page->out, "<td class=\"none%s\" title=\"not measured\"></td>",
			chosen ? " chosen" : "");
		return;
	}
	fprintf(page->out, "<td class=\"q%u%s%s%s\" title=\"", colour(map, trial->mean),
		chosen ? " chosen" : "", trial == map->best ? " best" : "", other ? " other" : "");
	page_rate(page, trial);
	fputs(": ", page->out);
	page_point(page, &trial->point);
	fprintf(page->out, "%s%s\">%s</td>", chosen ? "; the choice" : "",
		trial == map->best ? "; the best of this map" : "",
		figure_rate(page, trial->mean, text));
}

static void head(const struct report_page *page)
{
	const struct tune_space *space = page->result->space;

	fprintf(page->out,
		"<thead><tr><td></td><th scope=\"colgroup\" colspan=\"%u\">queue depth</th></tr>\n"
		"<tr><th scope=\"col\">block</th>",
		space->nqueue_depths);
	for (unsigned d = 0; d < space->nqueue_depths; d++)
		fprintf(page->out, "<th scope=\"col\">%u</th>", space->queue_depths[d]);
	fputs("</tr></thead>\n", page->out);
}

static void table(const struct report_page *page, const struct map *map)
{
	const struct tune_space *space = page->result->space;
	char text[FIGURE];

	fprintf(page->out,
		"%s<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"%s, in %s\">\n"
		"<table class=\"map\">\n",
		space->nqueue_depths > 10 ? "<p class=\"hint\">The map scrolls sideways.</p>\n"
					  : "",
		objective_text(map->objective), page->unit);
	head(page);
	fputs("<tbody>\n", page->out);
	for (unsigned b = 0; b < space->nblock_sizes; b++) {
		fprintf(page->out, "<tr><th scope=\"row\">%s</th>",
			figure_size(space->block_sizes[b], text));
		for (unsigned d = 0; d < space->nqueue_depths; d++)
			cell(page, map, space->block_sizes[b], space->queue_depths[d]);
		fputs("</tr>\n", page->out);
	}
	fputs("</tbody></table></div>\n", page->out);
}

static void scale(const struct report_page *page, const struct map *map)
{
	char text[FIGURE];

	fputs("<p class=\"scale\">0 <span aria-hidden=\"true\">", page->out);
	for (unsigned i = 0; i < COLOURS; i++)
		fprintf(page->out, "<i class=\"q%u\"></i>", i);
	fprintf(page->out, "</span> %s %s</p>\n", figure_rate(page, map->best->mean, text),
		page->unit);
}

/* Returns whether it has cells with other settings. */
static bool figure(const struct report_page *page, enum tune_objective objective)
{
	struct map map = look_over(page, objective);

	if (!map.best)
		return false;
	fprintf(page->out, "<figure>\n<figcaption><h3>%s%s</h3>\n", objective_text(objective),
		objective == page->result->rules->objective
			? " <span class=\"tag\">tuned for</span>"
			: "");
	fputs("<p>Best: ", page->out);
	page_rate(page, map.best);
	fputs(" at ", page->out);
	page_point(page, &map.best->point);
	fputs("</p></figcaption>\n", page->out);
	table(page, &map);
	scale(page, &map);
	fputs("</figure>\n", page->out);
	return map.others;
}

static void marks(const struct report_page *page, bool others)
{
	fputs("<ul class=\"marks\">\n", page->out);
	if (page->result->outcome->chosen)
		fputs("<li><i class=\"sample ring\"></i>the choice</li>\n", page->out);
	fputs("<li><i class=\"sample dashes\"></i>the best of a map</li>\n"
	      "<li><i class=\"sample none\"></i>not measured</li>\n",
	      page->out);
	if (others)
		fputs("<li><i class=\"sample q6 other\"></i>measured only with other "
		      "settings, the best of them</li>\n",
		      page->out);
	fputs("</ul>\n", page->out);
}

void page_maps(const struct report_page *page)
{
	const struct tune_point *point = &page->fixed->point;
	enum tune_objective tuned = page->result->rules->objective;
	bool others = false;

	fprintf(page->out,
		"<section aria-labelledby=\"maps\">\n"
		"<h2 id=\"maps\">Bandwidth over block size and depth</h2>\n"
		"<p>In %s, at %u worker%s, %s, single_submit %s, overlap_events %s. "
		"What was measured for the map alone is a single round.</p>\n"
		"<div class=\"maps%s\">\n",
		page->unit, point->thread_count, plural(point->thread_count),
		nvs_ioengine_name(point->ioengine), point->single_submit ? "true" : "false",
		point->overlap_events ? "true" : "false",
		page->result->space->nqueue_depths > 10 ? " wide" : "");
	others |= figure(page, tuned);
	for (unsigned i = 0; i < TUNE_OBJECTIVES; i++)
		if (i != tuned)
			others |= figure(page, (enum tune_objective)i);
	fputs("</div>\n", page->out);
	marks(page, others);
	fputs("</section>\n", page->out);
}
