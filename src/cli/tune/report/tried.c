/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of all trials, and the conditions of the result: the command line, its limits, and the
 * facts of `nvswap info` about machine and drive.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/html.h"
#include "cli/info/info.h"
#include "cli/tune/report/report.h"

static void tried(const struct report_page *page, const struct tune_trial *trial)
{
	static const char *const fates[] = {
		[TUNE_DROPPED] = "dropped",
		[TUNE_SLOWER] = "finalist, slower",
		[TUNE_TIE] = "as good, with more",
		[TUNE_OPEN] = "perhaps as good",
		[TUNE_OVER] = "over the latency bound",
		[TUNE_CHOSEN] = "chosen",
		[TUNE_ONLY_MAP] = "for the map alone",
	};
	const struct tune_point *point = &trial->point;
	char size[FIGURE], p50[FIGURE], p99[FIGURE], cpu[FIGURE] = "-";

	if (trial->cpu_ms_per_gib > 0)
		snprintf(cpu, sizeof(cpu), "%.1f", trial->cpu_ms_per_gib);
	fprintf(page->out, "<tr%s><td class=\"word\">%s</td><td>",
		trial == page->result->outcome->chosen ? " class=\"choice\"" : "",
		tune_objective_name(trial->objective));
	page_rate(page, trial);
	fprintf(page->out,
		"</td><td>%s</td><td>%u</td><td>%u</td><td class=\"word\">%s</td>"
		"<td class=\"word\">%s</td><td class=\"word\">%s</td><td>%s</td><td>%s</td>"
		"<td>%s</td><td>%u</td><td class=\"word\">%s</td></tr>\n",
		figure_size(point->block_size, size), point->queue_depth, point->thread_count,
		nvs_ioengine_name(point->ioengine), point->single_submit ? "true" : "false",
		point->overlap_events ? "true" : "false", figure_ns(trial->p50_ns, p50),
		figure_ns(trial->p99_ns, p99), cpu, trial->rounds, fates[trial->fate]);
}

void page_tried(const struct report_page *page)
{
	size_t n = page->result->outcome->n;

	fprintf(page->out,
		"<section class=\"everything\" aria-labelledby=\"tried\">\n"
		"<h2 id=\"tried\">All that was tried</h2>\n<details>\n"
		"<summary>%zu measured, the fastest first</summary>\n"
		"<p class=\"hint\">The table scrolls sideways.</p>\n"
		"<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"tried\">"
		"<table class=\"tried\">\n<thead><tr><th scope=\"col\" class=\"word\">of</th>"
		"<th scope=\"col\">bandwidth</th><th scope=\"col\">block</th>"
		"<th scope=\"col\">depth</th><th scope=\"col\">workers</th>"
		"<th scope=\"col\" class=\"word\">engine</th>"
		"<th scope=\"col\" class=\"word\">single<br>submit</th>"
		"<th scope=\"col\" class=\"word\">overlap<br>events</th>"
		"<th scope=\"col\">p50</th><th scope=\"col\">p99</th>"
		"<th scope=\"col\">CPU,<br>ms/GiB</th><th scope=\"col\">rounds</th>"
		"<th scope=\"col\" class=\"word\">fate</th></tr></thead>\n<tbody>\n",
		n);
	for (size_t i = 0; i < n; i++)
		tried(page, page->sorted[i]);
	fputs("</tbody></table></div>\n</details>\n</section>\n", page->out);
}

/* ---- The command ---- */

/* Quotes one word for bash: as $'' if it has control characters, which a page can't show. */
static void shell_word(const struct report_page *page, const char *word)
{
	static const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					 "0123456789_./:,+%@=-";
	bool quoted = !*word || word[strspn(word, plain)];

	html_text(page->out, quoted ? "$'" : "");
	for (; *word; word++) {
		char text[8] = {*word};

		if ((unsigned char)*word < ' ' || *word == 0x7f)
			snprintf(text, sizeof(text), "\\%03o", (unsigned)*word);
		else if (*word == '\'' || *word == '\\')
			snprintf(text, sizeof(text), "\\%c", *word);
		html_text(page->out, text);
	}
	html_text(page->out, quoted ? "'" : "");
}

static void command(const struct report_page *page)
{
	const struct options_given *given = page->result->given;

	fputs("<pre role=\"region\" tabindex=\"0\" aria-label=\"the command\">nvswap tune",
	      page->out);
	for (unsigned i = 0; i < tune_command.noptions; i++)
		if (given->text[i]) {
			fprintf(page->out, " --%s ", tune_command.options[i].name);
			shell_word(page, given->text[i]);
		}
	fputs(given->operands[0][0] == '-' ? " -- " : " ", page->out);
	shell_word(page, given->operands[0]);
	fputs("</pre>\n", page->out);
}

/* ---- Conditions ---- */

static void bounds(const struct report_page *page)
{
	const struct tune_space *space = page->result->space;
	const struct tune_options *options = page->result->options;
	const struct tune_drive *drive = page->result->drive;
	char a[FIGURE], b[FIGURE], c[FIGURE];

	fprintf(page->out,
		"<p>A search in the random order of seed %" PRIu64 ", with a tolerance of %g %%. "
		"%u block sizes from %s to %s, %u depths up to %u, %u numbers of workers up to %u, "
		"with at most %s in flight.</p>\n",
		options->seed, options->tolerance, space->nblock_sizes,
		figure_size(space->block_sizes[0], a),
		figure_size(space->block_sizes[space->nblock_sizes - 1], b), space->nqueue_depths,
		space->queue_depths[space->nqueue_depths - 1], space->nthread_counts,
		space->thread_counts[space->nthread_counts - 1],
		figure_size(space->in_flight_max, c));
	fprintf(page->out, "<p>Worked on %s, and wrote %s of at most %s.",
		figure_size(drive->working_set, a), figure_size(drive->written_bytes, b),
		figure_size(options->max_writes, c));
	if (drive->write_first > 0)
		fprintf(page->out, " Writing moved %s %s at first, and %s %s at the end.",
			figure_rate(page, drive->write_first, a), page->unit,
			figure_rate(page, drive->write_last, b), page->unit);
	fputs("</p>\n", page->out);
}

static void surroundings(const struct report_page *page)
{
	const struct tune_drive *drive = page->result->drive;
	struct report *info = calloc(1, sizeof(*info));
	char *text = NULL;
	size_t nbytes;
	FILE *out = info ? open_memstream(&text, &nbytes) : NULL;

	if (out) {
		info->machine = drive->machine;
		info->npaths = 1;
		info->paths[0].asked = page->result->options->directory;
		info->paths[0].info = drive->path;
		info->paths[0].advice.size = sizeof(info->paths[0].advice);
		nvs_machine_advise(&drive->machine, &drive->path, &info->paths[0].advice);
		info_text(out, info);
		fclose(out);
		fputs("<pre class=\"info\" role=\"region\" tabindex=\"0\" "
		      "aria-label=\"machine and drive\">",
		      page->out);
		html_text(page->out, text);
		fputs("</pre>\n", page->out);
	}
	free(text);
	free(info);
}

void page_conditions(const struct report_page *page)
{
	fputs("<section class=\"conditions\" aria-labelledby=\"conditions\">\n"
	      "<h2 id=\"conditions\">Where it holds</h2>\n",
	      page->out);
	bounds(page);
	command(page);
	surroundings(page);
	fputs("</section>\n", page->out);
}
