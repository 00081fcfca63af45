/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of `nvswap tune`: one page of HTML, made in memory so that a file is only ever
 * replaced by a complete one.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "cli/html.h"
#include "cli/result_file.h"
#include "cli/tune/report/report.h"

static void title(const struct report_page *page)
{
	const struct tune_trial *chosen = page->result->outcome->chosen;
	char size[FIGURE];

	if (!chosen)
		fputs("No choice was made", page->out);
	else
		fprintf(page->out, "Blocks of %s, depth %u, %u worker%s",
			figure_size(chosen->point.block_size, size), chosen->point.queue_depth,
			chosen->point.thread_count, plural(chosen->point.thread_count));
}

static void head(const struct report_page *page)
{
	html_begin(page->out);
	fputs("nvswap tune: ", page->out);
	title(page);
	fputs(", ", page->out);
	html_text(page->out, page->result->options->directory);
	html_body(page->out, page_style);
}

/* ---- The choice ---- */

static void tiles(const struct report_page *page, const struct tune_trial *chosen)
{
	const struct tune_point *point = &chosen->point;
	uint64_t in_flight = (uint64_t)point->block_size * point->queue_depth * point->thread_count;
	char text[FIGURE];

	fputs("<dl class=\"tiles\">\n<div><dt>Bandwidth</dt><dd>", page->out);
	page_rate(page, chosen);
	fprintf(page->out, "</dd><dd>%s%u round%s", chosen->rounds == 1 ? "" : "95 % interval, ",
		chosen->rounds, plural(chosen->rounds));
	if (page->result->outcome->fastest == chosen)
		fputs(chosen->finalist ? "; the fastest finalist" : "", page->out);
	else if (chosen->to_best > 0 && isfinite(chosen->to_best))
		fprintf(page->out, "; %.1f %% of the fastest", chosen->to_best * 100);
	fprintf(page->out, "</dd></div>\n<div><dt>Latency of an I/O, median</dt><dd>%s</dd>",
		figure_ns(chosen->p50_ns, text));
	fprintf(page->out, "<dd>99th percentile %s; of the slower direction</dd></div>\n",
		figure_ns(chosen->p99_ns, text));
	fprintf(page->out,
		"<div><dt>In flight</dt><dd>%s</dd><dd>%u I/Os on each of %u worker%s</dd></div>\n",
		figure_size(in_flight, text), point->queue_depth, point->thread_count,
		plural(point->thread_count));
	if (chosen->cpu_ms_per_gib > 0)
		fprintf(page->out,
			"<div><dt>CPU</dt><dd>%.1f ms</dd><dd>per GiB moved</dd></div>\n",
			chosen->cpu_ms_per_gib);
	fputs("</dl>\n", page->out);
}

static void warning(const struct report_page *page, const char *name, const char *text)
{
	fprintf(page->out, "<p class=\"warning\"><strong>%s:</strong> ", name);
	html_text(page->out, text);
	fputs("</p>\n", page->out);
}

static void choice(const struct report_page *page)
{
	tiles(page, page->result->outcome->chosen);
	fputs("<div class=\"top\">\n<div>\n<h2>Why</h2>\n<p>", page->out);
	html_text(page->out, page->result->outcome->why);
	fputs("</p>\n</div>\n<div class=\"block\">\n<h2>For the configuration</h2>\n<pre>",
	      page->out);
	/* Keys, numbers and the name of an I/O engine: nothing in it needs escaping. */
	tune_block(page->out, page->result);
	fputs("</pre>\n</div>\n</div>\n", page->out);
}

static void headline(const struct report_page *page)
{
	const struct tune_result *result = page->result;
	const struct tune_outcome *outcome = result->outcome;
	const struct nvs_path_info *path = &result->drive->path;

	fputs("<header>\n<p class=\"lead\">", page->out);
	html_text(page->out, path->model[0]    ? path->model
			     : path->device[0] ? path->device
					       : path->filesystem);
	fputs(", ", page->out);
	html_text(page->out, result->options->directory);
	fprintf(page->out, ". %s.</p>\n<h1>", objective_text(result->rules->objective));
	title(page);
	fputs("</h1>\n", page->out);
	if (result->drive->slows_down)
		warning(page, "Warning", result->drive->slows_text);
	if (outcome->chosen && !outcome->certain)
		warning(page, "The choice is not certain", outcome->unsure);
	if (outcome->chosen)
		choice(page);
	else
		fprintf(page->out, "<p>The run ended before %s.</p>\n",
			outcome->n ? "the choice; its measurements follow"
				   : "the first measurement");
	fputs("</header>\n<main>\n", page->out);
}

static void foot(const struct report_page *page)
{
	time_t finished = (time_t)page->result->finished_unix_s;
	char date[64] = "at an unknown time", took[FIGURE];
	struct tm utc;

	if (gmtime_r(&finished, &utc))
		strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &utc);
	fprintf(page->out,
		"</main>\n<footer>nvswap %s, %s, after %s. GB and MB are 10<sup>9</sup> and "
		"10<sup>6</sup> bytes; KiB, MiB and GiB are powers of 1024.</footer>\n"
		"</body>\n</html>\n",
		nvs_version(), date, figure_ns(page->result->elapsed_ns, took));
}

/* ---- The page ---- */

/* Equal rates keep the order of measurement. */
static int by_rate(const void *a, const void *b, void *arg)
{
	const struct tune_trial *x = *(const struct tune_trial *const *)a;
	const struct tune_trial *y = *(const struct tune_trial *const *)b;
	enum tune_objective asked = *(const enum tune_objective *)arg;

	if (x->objective != y->objective && (x->objective == asked || y->objective == asked))
		return x->objective == asked ? -1 : 1;
	if (x->objective != y->objective)
		return x->objective < y->objective ? -1 : 1;
	if (x->mean != y->mean)
		return x->mean > y->mean ? -1 : 1;
	return x < y ? -1 : x > y;
}

static void write_page(struct report_page *page)
{
	const struct tune_outcome *outcome = page->result->outcome;
	enum tune_objective asked = page->result->rules->objective;
	double most = 0;

	for (size_t i = 0; i < outcome->n; i++) {
		page->sorted[i] = &outcome->trials[i];
		most = fmax(most, outcome->trials[i].mean);
	}
	qsort_r(page->sorted, outcome->n, sizeof(*page->sorted), by_rate, &asked);
	page->fixed = outcome->chosen ? outcome->chosen : page->sorted[0];
	page->unit_bytes_per_s = most < 1e9 ? 1e6 : 1e9;
	page->unit = most < 1e9 ? "MB/s" : "GB/s";
	head(page);
	headline(page);
	if (page->fixed) {
		page_maps(page);
		fputs("<div class=\"pair\">\n", page->out);
		page_curve(page);
		page_finalists(page);
		fputs("</div>\n", page->out);
		page_tried(page);
	}
	page_conditions(page);
	foot(page);
}

/* Makes the page, malloc'ed; 0 or -ENOMEM. */
static int make_page(const struct tune_result *result, char **text, size_t *nbytes)
{
	struct report_page page = {.result = result, .out = open_memstream(text, nbytes)};
	int rc = -ENOMEM;

	if (!page.out)
		return rc;
	page.sorted = calloc(result->outcome->n + 1, sizeof(*page.sorted));
	if (page.sorted) {
		write_page(&page);
		rc = ferror(page.out) ? -ENOMEM : 0;
	}
	free(page.sorted);
	return fclose(page.out) ? -ENOMEM : rc;
}

int tune_report_write(const char *path, const struct tune_result *result, struct nvs_error *error)
{
	char *text = NULL;
	size_t nbytes = 0;
	int rc = make_page(result, &text, &nbytes);

	if (!rc)
		rc = result_replace(path, text, nbytes);
	free(text);
	if (rc) {
		*error = (struct nvs_error){.size = sizeof(*error), .code = rc};
		snprintf(error->subject, sizeof(error->subject), "report");
		snprintf(error->text, sizeof(error->text), "can't write the report to %s: %s", path,
			 rc == -ENOMEM ? "no memory for it" : result_strerror(rc));
	}
	return rc;
}
