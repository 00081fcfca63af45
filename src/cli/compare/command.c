/* SPDX-License-Identifier: Apache-2.0 */
/* `nvswap compare`: its options, and a comparison as text or JSON. */
#include <math.h>

#include "base/error.h"
#include "base/numbers.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"

#define LABEL		    15
#define NUMBER		    32
#define HALF_WIDTH(percent) half_width_text((percent), (char[NUMBER]){0})

static void write_notes(const struct comparison *comparison, char notes[512])
{
	bool single = false;

	for (unsigned i = 0; i < comparison->nsides; i++)
		single |= comparison->sides[i].nruns == 1;
	snprintf(notes, 512,
		 "± is half of the 95 %% interval; same is within %g %% of the base.%s%s",
		 comparison->threshold,
		 !single ? ""
			 : " A single run has intervals of rates only, from its samples, and only "
			   "if it took 4 s or more. It does not show how runs differ: repeat "
			   "runs, as A1.json,A2.json.",
		 comparison->by_order ? " Jobs are matched by their order: their names differ."
				      : "");
}

/* Right-aligned; only the end of a long label. */
static void put_label(FILE *file, const char *label)
{
	size_t n = 0;

	for (const char *c = label; *c; c++)
		n += (*c & 0xc0) != 0x80;
	for (size_t skip = n > LABEL ? n - LABEL + 2 : 0; skip; skip--)
		for (label++; (*label & 0xc0) == 0x80; label++)
			;
	fprintf(file, "%*s %s%s", n < LABEL ? (int)(LABEL - n) : 0, "", n > LABEL ? ".." : "",
		label);
}

/* In six columns. */
static const char *half_width_text(double percent, char text[NUMBER])
{
	if (!isfinite(percent))
		snprintf(text, NUMBER, "%6s", "");
	else if (percent >= 99.5)
		snprintf(text, NUMBER, "%6s", ">99%");
	else
		snprintf(text, NUMBER, "%*s±%.*f%%", percent < 9.95 ? 1 : 2, "",
			 percent < 9.95 ? 1 : 0, percent);
	return text;
}

static void put_value(FILE *file, const struct cell *cell, double scale)
{
	double value = cell->estimate.value * scale;

	if (!(value > 0))
		fprintf(file, " %9s%6s", "-", "");
	else
		fprintf(file,
			value < 99999.95 ? " %9.1f%s"
			: value < 1e9	 ? " %9.0f%s"
					 : " %9.3g%s",
			value, HALF_WIDTH(cell->half_width));
}

static void put_table(FILE *file, const struct comparison *comparison, unsigned side, unsigned job)
{
	fprintf(file, "\n%s\n%16s", comparison_job_name(comparison, job), "");
	put_label(file, comparison->sides[0].label);
	put_label(file, comparison->sides[side].label);
	fputs("         change  verdict\n", file);
	for (unsigned i = 0; i < METRICS; i++) {
		const struct cell *cell = &comparison->sides[side].cells[job][i];

		if (!comparison_has(comparison, job, i))
			continue;
		fprintf(file, "%-10s %-5s", metrics[i].name, metrics[i].unit);
		put_value(file, &comparison->sides->cells[job][i], metrics[i].scale);
		put_value(file, cell, metrics[i].scale);
		if (!isnan(cell->change)) {
			/* In eight columns; beyond five digits of per cent as a factor. */
			if (cell->change < 99999.5)
				fprintf(file, " %+6.*f%%", cell->change < 999.95, cell->change);
			else
				fprintf(file, "  x%.0e", cell->change / 100);
			fprintf(file, "%s  %s", HALF_WIDTH(cell->change_half_width), cell->verdict);
		}
		fputc('\n', file);
	}
}

static void compare_text(FILE *file, const struct comparison *comparison)
{
	unsigned nbase = comparison->base->count;
	char notes[512];

	for (unsigned side = 0; side < comparison->nsides; side++)
		fprintf(file, "%s  %s: %u run%s\n", side ? "    " : "base",
			comparison->sides[side].label, comparison->sides[side].nruns,
			plural(comparison->sides[side].nruns));
	for (unsigned job = 0; job < nbase; job++)
		for (unsigned side = 1; side < comparison->nsides; side++)
			put_table(file, comparison, side, job);
	write_notes(comparison, notes);
	fputc('\n', file);
	write_wrapped(file, notes, 0);
}

static void put_cell(struct json_writer *json, const struct compare_side *side, unsigned job,
		     unsigned metric, bool change)
{
	const struct cell *cell = &side->cells[job][metric];
	double value = cell->estimate.value;

	json_open_object(json, NULL);
	json_text(json, "result", side->label);
	json_exact(json, "value", value > 0 ? value : (double)NAN);
	json_exact(json, "half_width", cell->half_width);
	if (change) {
		json_exact(json, "change", cell->change);
		json_exact(json, "change_half_width", cell->change_half_width);
		json_text(json, "verdict", cell->verdict);
		json_bool(json, "beyond_threshold", cell->beyond_threshold);
	}
	json_close_object(json);
}

/* As the results have them: what reads them refuses what is no percentile or bin. */
static void put_latencies(struct json_writer *json, const struct compare_side *side, unsigned job,
			  const char *direction)
{
	static const char *const members[] = {"percentile", "bins"};

	json_open_list(json, direction);
	for (unsigned run = 0; run < side->nruns; run++) {
		const struct json_value *clat =
			json_member(json_member(side->runs[run][job].json, direction), "clat_ns");

		json_open_object(json, NULL);
		for (unsigned i = 0; i < 2; i++) {
			const struct json_value *value = json_member(clat, members[i]);

			if (value)
				json_number(json, members[i], "%.*s", (int)value->raw_length,
					    value->raw);
		}
		json_close_object(json);
	}
	json_close_list(json);
}

static void compare_json(FILE *file, const struct comparison *comparison)
{
	struct json_writer json = json_to(file, 2);
	unsigned nbase = comparison->base->count;
	char notes[512];

	write_notes(comparison, notes);
	json_open_object(&json, NULL);
	json_text(&json, "nvswap version", nvs_version());
	json_exact(&json, "threshold", comparison->threshold);
	json_text(&json, "notes", notes);
	json_open_list(&json, "results");
	for (unsigned side = 0; side < comparison->nsides; side++) {
		json_open_object(&json, NULL);
		json_text(&json, "label", comparison->sides[side].label);
		json_count(&json, "runs", comparison->sides[side].nruns);
		json_close_object(&json);
	}
	json_close_list(&json);
	json_open_list(&json, "jobs");
	for (unsigned job = 0; job < nbase; job++) {
		json_open_object(&json, NULL);
		json_text(&json, "jobname", comparison_job_name(comparison, job));
		for (unsigned i = 0; i < METRICS; i++) {
			if (!comparison_has(comparison, job, i))
				continue;
			json_open_list(&json, metrics[i].key);
			for (unsigned side = 0; side < comparison->nsides; side++)
				put_cell(&json, &comparison->sides[side], job, i, side);
			json_close_list(&json);
		}
		json_open_list(&json, "clat_ns");
		for (unsigned side = 0; side < comparison->nsides; side++) {
			json_open_object(&json, NULL);
			json_text(&json, "result", comparison->sides[side].label);
			put_latencies(&json, &comparison->sides[side], job, "read");
			put_latencies(&json, &comparison->sides[side], job, "write");
			json_close_object(&json);
		}
		json_close_list(&json);
		json_close_object(&json);
	}
	json_close_list(&json);
	json_close_object(&json);
}

struct values {
	double threshold;
	struct report_options report;
};

static const struct values defaults = {.threshold = 5};

static const struct option_spec options[] = {
	{"threshold", "PERCENT", OPTION_PERCENT, offsetof(struct values, threshold),
	 .help = "smaller changes count as the same; a larger slowdown makes the exit "
		 "status 1 (5)"},
	REPORT_OPTIONS(offsetof(struct values, report)),
};

const struct command_spec compare_command = {
	.name = "compare",
	.summary = "Shows JSON results of nvswap bench or fio beside the first of them, and "
		   "distinguishes\nchanges from noise.",
	.notes = "RESULT is a file, or several of repeated runs: A1.json,A2.json. before=A1.json "
		 "names\nit in the output.\n\nExit status: 0; 1 if bandwidth, IOPS or latency "
		 "of any job got worse by more than\nthe threshold and beyond noise; 2 for bad "
		 "usage, or results that can't be read.",
	.operand = "RESULT RESULT...",
	.options = options,
	.noptions = COUNT_OF(options),
	.defaults = &defaults,
};

int cmd_compare(int argc, char **argv)
{
	static struct comparison comparison;
	struct values values = defaults;
	struct options_given given;
	struct output output;
	int status = options_parse(&compare_command, argc, argv, &values, &given);
	bool json = values.report.format == REPORT_JSON;

	if (status)
		return status == OPTIONS_HELP ? options_help(&compare_command) : STATUS_USAGE;
	if (given.noperands < 2)
		return REFUSE(STATUS_USAGE, "compare needs at least two results: nvswap compare "
					    "BEFORE.json AFTER.json");
	comparison.threshold = values.threshold;
	if (comparison_read(&comparison, given.operands, given.noperands) ||
	    output_open(&output, values.report.output))
		return STATUS_USAGE;
	status = output_begin(&output);
	if (!status)
		(json ? compare_json : compare_text)(output.file, &comparison);
	if (output_close(&output) || status)
		return STATUS_USAGE;
	if (json)
		say_page(values.report.output);
	return comparison.slower ? STATUS_FAILED : 0;
}
