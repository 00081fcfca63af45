/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the report of `nvswap tune`: all that was tried, and the drive, the machine and the
 * settings for which it holds.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "tune_report.h"

static const char *const objectives[] = {"swap", "read", "write"};

/* ---- All that was tried ---- */

static void tried_how_fast(const struct report_page *page, const struct tune_trial *trial)
{
	char text[FIGURE];

	fprintf(page->out, "<td>%s</td>", figure_ns(trial->p50_ns, text));
	fprintf(page->out, "<td>%s</td>", figure_ns(trial->p99_ns, text));
	if (trial->cpu_ms_per_gib > 0)
		fprintf(page->out, "<td>%.1f</td>", trial->cpu_ms_per_gib);
	else
		fputs("<td>-</td>", page->out);
}

static void tried(const struct report_page *page, const struct tune_trial *trial)
{
	static const char *const fates[] = {
		[TUNE_DROPPED] = "dropped",	   [TUNE_SLOWER] = "finalist, slower",
		[TUNE_TIE] = "as good, with more", [TUNE_OPEN] = "perhaps as good",
		[TUNE_CHOSEN] = "chosen",	   [TUNE_ONLY_MAP] = "for the map alone",
	};
	const struct tune_point *point = &trial->point;
	char text[FIGURE];

	fprintf(page->out, "<tr%s><td class=\"word\">%s</td><td>",
		trial == page->result->outcome->chosen ? " class=\"choice\"" : "",
		objectives[trial->objective]);
	page_rate(page, trial);
	fprintf(page->out, "</td><td>%s</td><td>%u</td><td>%u</td><td class=\"word\">%s</td>",
		figure_size(point->block_size, text), point->queue_depth, point->thread_count,
		nvs_ioengine_name(point->ioengine));
	fprintf(page->out, "<td class=\"word\">%s</td><td class=\"word\">%s</td>",
		point->single_submit ? "true" : "false", point->overlap_events ? "true" : "false");
	tried_how_fast(page, trial);
	fprintf(page->out, "<td>%u</td><td class=\"word\">%s</td></tr>\n", trial->rounds,
		fates[trial->fate]);
}

static void tried_head(const struct report_page *page)
{
	static const struct {
		const char *name;
		bool word; /* and no number */
	} columns[] = {
		{"of", true},
		{"bandwidth", false},
		{"block", false},
		{"depth", false},
		{"workers", false},
		{"engine", true},
		{"single<br>submit", true},
		{"overlap<br>events", true},
		{"p50", false},
		{"p99", false},
		{"CPU,<br>ms/GiB", false},
		{"rounds", false},
		{"what came of it", true},
	};

	fputs("<thead><tr>", page->out);
	for (size_t i = 0; i < sizeof(columns) / sizeof(*columns); i++)
		fprintf(page->out, "<th scope=\"col\"%s>%s</th>",
			columns[i].word ? " class=\"word\"" : "", columns[i].name);
	fputs("</tr></thead>\n", page->out);
}

void page_tried(const struct report_page *page)
{
	size_t n = page->result->outcome->n;

	fprintf(page->out,
		"<section class=\"everything\" aria-labelledby=\"tried\">\n"
		"<h2 id=\"tried\">All that was tried</h2>\n<details>\n"
		"<summary>%zu measured, the fastest first</summary>\n"
		"<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-labelledby=\"tried\">"
		"<table class=\"tried\">\n",
		n);
	tried_head(page);
	fputs("<tbody>\n", page->out);
	for (size_t i = 0; i < n; i++)
		tried(page, page->sorted[i]);
	fputs("</tbody></table></div>\n</details>\n</section>\n", page->out);
}

/* ---- Where it holds ---- */

static void facts(const struct report_page *page, const char *name)
{
	fprintf(page->out, "<div class=\"facts\">\n<h3>%s</h3>\n<dl>\n", name);
}

static void end_facts(const struct report_page *page)
{
	fputs("</dl>\n</div>\n", page->out);
}

static void __attribute__((format(printf, 3, 4)))
fact(const struct report_page *page, const char *name, const char *format, ...)
{
	char text[2048];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(page->out, "<dt>%s</dt><dd>", name);
	page_text(page, text);
	fputs("</dd>\n", page->out);
}

static void queue(const struct report_page *page, const struct nvs_path_info *path)
{
	char now[FIGURE], most[FIGURE];

	if (!path->device[0])
		return;
	fact(page, "longest I/O", "%s; the drive can do %s", figure_size(path->max_io_bytes, now),
	     figure_size(path->max_hw_io_bytes, most));
	fact(page, "requests", "%u in its queue", path->nr_requests);
	fact(page, "scheduler", "%s", path->scheduler[0] ? path->scheduler : "unknown");
}

static void drive_path(const struct report_page *page, const struct nvs_path_info *path)
{
	char a[FIGURE], b[FIGURE];

	fact(page, "path", "%s", path->path);
	fact(page, "file system", "%s", path->filesystem[0] ? path->filesystem : "unknown");
	fact(page, "space", "%s free of %s", figure_size(path->free_bytes, a),
	     figure_size(path->total_bytes, b));
	fact(page, "device", "%s%s", path->device[0] ? path->device : "can't be told",
	     path->rotational ? ", rotational" : "");
	if (path->model[0])
		fact(page, "model", "%s", path->model);
	if (path->direct)
		fact(page, "direct I/O", "memory aligned to %s, offsets to %s",
		     figure_size(path->dio_mem_align, a), figure_size(path->dio_offset_align, b));
	else
		fact(page, "direct I/O", "no; through the page cache");
	queue(page, path);
	if (path->numa_node >= 0)
		fact(page, "NUMA node", "%d", path->numa_node);
}

static void drive(const struct report_page *page)
{
	const struct tune_drive *drive = page->result->drive;
	char first[FIGURE], last[FIGURE], size[FIGURE];

	facts(page, "The drive");
	drive_path(page, &drive->path);
	fact(page, "worked on", "%s", figure_size(drive->working_set, size));
	if (drive->written_bytes)
		fact(page, "writes", "%s %s at first, %s %s after %s",
		     figure_rate(page, drive->write_first, first), page->unit,
		     figure_rate(page, drive->write_last, last), page->unit,
		     figure_size(drive->written_bytes, size));
	end_facts(page);
}

static void engines(const struct report_page *page, const struct nvs_machine_info *machine)
{
	for (unsigned i = NVS_IOENGINE_AUTO + 1; i < NVS_IOENGINE_COUNT; i++)
		fact(page, nvs_ioengine_name((enum nvs_ioengine)i), "%s%s",
		     machine->ioengine[i].works ? "works" : "does not work: ",
		     machine->ioengine[i].reason);
	if (machine->ioengine[NVS_IOENGINE_AUTO].works)
		fact(page, "auto takes", "%s%s%s", nvs_ioengine_name(machine->auto_ioengine),
		     machine->ioengine[NVS_IOENGINE_AUTO].reason[0] ? ": " : "",
		     machine->ioengine[NVS_IOENGINE_AUTO].reason);
}

static void machine(const struct report_page *page)
{
	const struct nvs_machine_info *machine = &page->result->drive->machine;
	char text[FIGURE];

	facts(page, "The machine");
	fact(page, "kernel", "%s", machine->kernel);
	fact(page, "CPUs", "%u", machine->cpus);
	fact(page, "NUMA nodes", "%u", machine->numa_nodes);
	fact(page, "memory", "%s", figure_size(machine->memory_bytes, text));
	fact(page, "may be locked", "%s",
	     machine->memlock_bytes == UINT64_MAX ? "all of it"
						  : figure_size(machine->memlock_bytes, text));
	if (machine->hugepage_bytes)
		fact(page, "huge pages", "%" PRIu64 " of %" PRIu64 " free, %s each",
		     machine->hugepages_free, machine->hugepages_total,
		     figure_size(machine->hugepage_bytes, text));
	fact(page, "transparent ones", "%s",
	     machine->transparent_hugepages[0] ? machine->transparent_hugepages : "unknown");
	engines(page, machine);
	end_facts(page);
}

static bool is_control(char c)
{
	return (unsigned char)c < ' ' || c == 0x7f;
}

static void quoted(const struct report_page *page, const char *word)
{
	bool escaped = false;

	for (const char *c = word; *c; c++)
		escaped |= is_control(*c);
	page_text(page, escaped ? "$'" : "'");
	for (; *word; word++) {
		char text[8] = {*word};

		if (is_control(*word))
			snprintf(text, sizeof(text), "\\%03o", (unsigned)*word);
		else if (*word == '\'')
			strcpy(text, escaped ? "\\'" : "'\\''");
		else if (*word == '\\' && escaped)
			strcpy(text, "\\\\");
		page_text(page, text);
	}
	page_text(page, "'");
}

/* As a shell takes it for one word; bash, where there is in it what a page can't show. */
static void shell_word(const struct report_page *page, const char *word)
{
	static const char *const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
					 "0123456789_./:,+%@=-";

	if (*word && !word[strspn(word, plain)])
		page_text(page, word);
	else
		quoted(page, word);
}

static void given_option(const struct report_page *page, const struct option_spec *option,
			 const char *text)
{
	bool flag = option->type == OPTION_FLAG;

	fprintf(page->out, " --%s", option->name);
	if (flag && !strcmp(text, "1"))
		return;
	fputs(flag ? "=" : " ", page->out);
	shell_word(page, text);
}

static void command(const struct report_page *page)
{
	const struct options_given *given = page->result->given;

	fputs("<pre role=\"region\" tabindex=\"0\" aria-label=\"the command\">nvswap tune",
	      page->out);
	for (unsigned i = 0; i < tune_command.noptions; i++)
		if (given->text[i])
			given_option(page, &tune_command.options[i], given->text[i]);
	fputs(given->operands[0][0] == '-' ? " -- " : " ", page->out);
	shell_word(page, given->operands[0]);
	fputs("</pre>\n", page->out);
}

static void range(const struct report_page *page, const char *name, const uint32_t *values,
		  unsigned n, bool sizes)
{
	char first[FIGURE], last[FIGURE];

	if (sizes)
		fact(page, name, "%u, %s to %s", n, figure_size(values[0], first),
		     figure_size(values[n - 1], last));
	else
		fact(page, name, "%u, %" PRIu32 " to %" PRIu32, n, values[0], values[n - 1]);
}

static void settings(const struct report_page *page)
{
	const struct tune_space *space = page->result->space;
	const struct tune_rules *rules = page->result->rules;
	char size[FIGURE], time[FIGURE];

	facts(page, "What was asked");
	fact(page, "way", "%s, in an order of the seed %" PRIu64,
	     rules->exhaustive ? "every combination" : "a search", rules->seed);
	fact(page, "time", "%s at most", figure_ns(page->result->options->time_ms * 1000000, time));
	fact(page, "tolerance", "%g %%", rules->tolerance * 100);
	range(page, "block sizes", space->block_sizes, space->nblock_sizes, true);
	range(page, "depths", space->queue_depths, space->nqueue_depths, false);
	range(page, "workers", space->thread_counts, space->nthread_counts, false);
	fact(page, "in flight", "%s at most", figure_size(space->in_flight_max, size));
	fputs("</dl>\n", page->out);
	command(page);
	fputs("</div>\n", page->out);
}

static void advice(const struct report_page *page)
{
	const struct tune_drive *drive = page->result->drive;
	struct nvs_advice advice;

	nvs_advise(&drive->machine, &drive->path, &advice);
	fputs("<div class=\"facts\">\n<h3>What to change</h3>\n", page->out);
	fputs(advice.count ? "<ol class=\"advice\">\n" : "<p>Nothing.</p>\n", page->out);
	for (unsigned i = 0; i < advice.count; i++) {
		fputs("<li>", page->out);
		page_text(page, advice.line[i]);
		fputs("</li>\n", page->out);
	}
	fprintf(page->out, "%s</div>\n", advice.count ? "</ol>\n" : "");
}

void page_surroundings(const struct report_page *page)
{
	fputs("<section aria-labelledby=\"surroundings\">\n"
	      "<h2 id=\"surroundings\">Where it holds</h2>\n<div class=\"surroundings\">\n",
	      page->out);
	drive(page);
	machine(page);
	settings(page);
	advice(page);
	fputs("</div>\n</section>\n", page->out);
}
