/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of `nvswap tune`: one page of HTML that loads nothing and runs no script. What was
 * chosen and why stands first, then the pictures, then all that was tried and where. The page is
 * made in memory, so that a file is only written when the whole of it is there.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tune_report.h"

#define BLOCK_BYTES 1024

static const char *drive_name(const struct tune_drive *drive)
{
	return drive->path.model[0]    ? drive->path.model
	       : drive->path.device[0] ? drive->path.device
				       : drive->path.filesystem;
}

static void title(const struct report_page *page)
{
	const struct tune_trial *chosen = page->result->outcome->chosen;
	char size[FIGURE];

	if (!chosen) {
		fputs("No choice was made", page->out);
		return;
	}
	fprintf(page->out, "Blocks of %s, depth %u, %u worker%s",
		figure_size(chosen->point.block_size, size), chosen->point.queue_depth,
		chosen->point.thread_count, chosen->point.thread_count == 1 ? "" : "s");
}

static void head(const struct report_page *page)
{
	fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
	      "<title>nvswap tune: ",
	      page->out);
	title(page);
	fputs(", ", page->out);
	page_text(page, page->result->options->directory);
	fprintf(page->out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n", page_style);
}

static void tile(const struct report_page *page, const char *name)
{
	fprintf(page->out, "<div><dt>%s</dt><dd>", name);
}

static void bandwidth_tile(const struct report_page *page, const struct tune_trial *chosen)
{
	tile(page, "Bandwidth");
	page_rate(page, chosen);
	fprintf(page->out, "</dd><dd>%s%u round%s", chosen->rounds == 1 ? "" : "95 % interval, ",
		chosen->rounds, chosen->rounds == 1 ? "" : "s");
	if (page->result->outcome->fastest == chosen)
		fputs(chosen->finalist ? "; the fastest finalist" : "", page->out);
	else if (chosen->to_best > 0 && isfinite(chosen->to_best))
		fprintf(page->out, "; %.1f %% of the fastest", chosen->to_best * 100);
	fputs("</dd></div>\n", page->out);
}

static void tiles(const struct report_page *page, const struct tune_trial *chosen)
{
	const struct tune_point *point = &chosen->point;
	uint64_t in_flight = (uint64_t)point->block_size * point->queue_depth * point->thread_count;
	char text[FIGURE];

	fputs("<dl class=\"tiles\">\n", page->out);
	bandwidth_tile(page, chosen);
	tile(page, "Latency of an I/O, median");
	fprintf(page->out, "%s</dd>", figure_ns(chosen->p50_ns, text));
	fprintf(page->out, "<dd>p99 %s; of the slower direction</dd></div>\n",
		figure_ns(chosen->p99_ns, text));
	tile(page, "In flight");
	fprintf(page->out, "%s</dd><dd>%u I/Os on each of %u worker%s</dd></div>\n",
		figure_size(in_flight, text), point->queue_depth, point->thread_count,
		point->thread_count == 1 ? "" : "s");
	if (chosen->cpu_ms_per_gib > 0) {
		tile(page, "CPU");
		fprintf(page->out, "%.1f ms</dd><dd>for each GiB that is moved</dd></div>\n",
			chosen->cpu_ms_per_gib);
	}
	fputs("</dl>\n", page->out);
}

static void warning(const struct report_page *page, const char *text)
{
	fputs("<p class=\"warning\"><strong>Warning:</strong> ", page->out);
	page_text(page, text);
	fputs("</p>\n", page->out);
}

static void warnings(const struct report_page *page)
{
	if (page->result->drive->slows_down)
		warning(page, page->result->drive->slows_text);
	if (page->result->outcome->chosen && !page->result->outcome->certain)
		warning(page, "the choice is not certain, for the reason given under Why.");
}

static void choice(const struct report_page *page)
{
	char block[BLOCK_BYTES];

	fputs("<div class=\"top\">\n<div>\n<h2>Why</h2>\n<p>", page->out);
	page_text(page, page->result->outcome->why);
	fputs("</p>\n</div>\n<div class=\"block\">\n<h2>For the configuration</h2>\n<pre>",
	      page->out);
	tune_block_text(page->result, block, sizeof(block));
	page_lines(page, block);
	fputs("</pre>\n</div>\n</div>\n", page->out);
}

static void no_choice(const struct report_page *page)
{
	const struct tune_outcome *outcome = page->result->outcome;

	fputs("<p>", page->out);
	page_text(page, outcome->why[0] ? outcome->why
			: outcome->n	? "The run ended before it could choose."
					: "The run ended before anything was measured.");
	fprintf(page->out, "</p>\n%s",
		outcome->n ? "<p>What was measured until then follows.</p>\n" : "");
}

static void headline(const struct report_page *page)
{
	const struct tune_result *result = page->result;

	fputs("<header>\n<p class=\"lead\">", page->out);
	page_text(page, drive_name(result->drive));
	fputs(", ", page->out);
	page_text(page, result->options->directory);
	fprintf(page->out, ". %s.</p>\n<h1>", objective_text(result->rules->objective));
	title(page);
	fputs("</h1>\n", page->out);
	warnings(page);
	if (result->outcome->chosen) {
		tiles(page, result->outcome->chosen);
		choice(page);
	} else {
		no_choice(page);
	}
	fputs("</header>\n<main>\n", page->out);
}

static void foot(const struct report_page *page)
{
	time_t finished = (time_t)page->result->finished_unix_s;
	char date[64] = "at a time that can't be told", took[FIGURE];
	struct tm utc;

	if (gmtime_r(&finished, &utc))
		strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &utc);
	fprintf(page->out,
		"</main>\n<footer>nvswap %s, %s, after %s. GB and MB are of 10<sup>9</sup> and "
		"10<sup>6</sup> bytes; KiB, MiB and GiB of powers of 1024.</footer>\n"
		"</body>\n</html>\n",
		nvs_version(), date, figure_ns(page->result->elapsed_ns, took));
}

static void choose_unit(struct report_page *page)
{
	const struct tune_outcome *outcome = page->result->outcome;
	double most = 0;

	for (size_t i = 0; i < outcome->n; i++)
		most = fmax(most, outcome->trials[i].mean);
	page->unit_bytes_per_s = most < 1e9 ? 1e6 : 1e9;
	page->unit = most < 1e9 ? "MB/s" : "GB/s";
}

/* What is as fast stays as it was measured. */
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

	for (size_t i = 0; i < outcome->n; i++)
		page->sorted[i] = &outcome->trials[i];
	qsort_r(page->sorted, outcome->n, sizeof(*page->sorted), by_rate, &asked);
	page->fixed = outcome->chosen ? outcome->chosen : page->sorted[0];
	choose_unit(page);
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
	page_surroundings(page);
	foot(page);
}

/* The page as text, malloc'ed; 0 or -ENOMEM. */
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

static int fail(struct nvs_error *error, const char *path, int rc)
{
	*error = (struct nvs_error){.code = rc};
	snprintf(error->subject, sizeof(error->subject), "report");
	snprintf(error->text, sizeof(error->text), "can't write the report to %s: %s", path,
		 rc == -ENOMEM ? "no memory for it" : strerror(-rc));
	return rc;
}

static int write_all(int fd, const char *text, size_t nbytes)
{
	while (nbytes) {
		ssize_t n = write(fd, text, nbytes);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			text += n;
			nbytes -= (size_t)n;
		}
	}
	return 0;
}

static int write_file(const char *path, const char *text, size_t nbytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	int rc;

	if (fd < 0)
		return -errno;
	/* EINVAL: a pipe or a device, which there is nothing to empty in. */
	rc = ftruncate(fd, 0) && errno != EINVAL ? -errno : write_all(fd, text, nbytes);
	if (close(fd) && !rc)
		rc = -errno;
	return rc;
}

int tune_report_write(const char *path, const struct tune_result *result, struct nvs_error *error)
{
	char *text = NULL;
	size_t nbytes = 0;
	int rc = make_page(result, &text, &nbytes);

	if (!rc)
		rc = write_file(path, text, nbytes);
	free(text);
	return rc ? fail(error, path, rc) : 0;
}
