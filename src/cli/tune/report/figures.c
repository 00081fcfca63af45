/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures and words of the report of `nvswap tune`. Relies on the C locale, which the command
 * never leaves. What came from outside goes into the page through page_text() alone.
 */
#include <math.h>
#include <string.h>

#include "tune_report.h"

static void character(FILE *out, unsigned char c)
{
	if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\'')
		fprintf(out, "&#%u;", c);
	else if (c < ' ' || c == 0x7f)
		fputs("&#xfffd;", out);
	else
		fputc(c, out);
}

void page_text(const struct report_page *page, const char *text)
{
	for (; *text; text++)
		character(page->out, (unsigned char)*text);
}

void page_lines(const struct report_page *page, const char *text)
{
	for (; *text; text++)
		if (*text == '\n')
			fputc('\n', page->out);
		else
			character(page->out, (unsigned char)*text);
}

/* Three digits that count, as far as there are decimals to leave off. */
static int decimals(double value)
{
	return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

const char *figure_size(uint64_t nbytes, char text[FIGURE])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
	double value = (double)nbytes;
	unsigned unit = 0;

	for (; value >= 1024 && unit + 1 < sizeof(units) / sizeof(*units); unit++)
		value /= 1024;
	snprintf(text, FIGURE, "%.*f %s", value == floor(value) ? 0 : decimals(value), value,
		 units[unit]);
	return text;
}

const char *figure_ns(uint64_t ns, char text[FIGURE])
{
	static const char *const units[] = {"us", "ms", "s"};
	double value = (double)ns / 1e3;
	unsigned unit = 0;

	for (; value >= 999.5 && unit < 2; unit++)
		value /= 1e3;
	snprintf(text, FIGURE, "%.*f %s", decimals(value), value, units[unit]);
	return text;
}

const char *figure_rate(const struct report_page *page, double bytes_per_s, char text[FIGURE])
{
	double value = bytes_per_s / page->unit_bytes_per_s;

	snprintf(text, FIGURE, "%.*f", decimals(value), value);
	return text;
}

void page_rate(const struct report_page *page, const struct tune_trial *trial)
{
	double mean = trial->mean / page->unit_bytes_per_s;

	fprintf(page->out, "%.*f %s", decimals(mean), mean, page->unit);
	if (trial->rounds > 1 && isfinite(trial->half_width))
		fprintf(page->out, " &#177; %.*f", decimals(mean),
			trial->half_width / page->unit_bytes_per_s);
}

void page_point(const struct report_page *page, const struct tune_point *point)
{
	char size[FIGURE];

	fprintf(page->out, "%s, depth %u, %u worker%s, %s%s%s",
		figure_size(point->block_size, size), point->queue_depth, point->thread_count,
		point->thread_count == 1 ? "" : "s", nvs_ioengine_name(point->ioengine),
		point->single_submit ? ", single submit" : "",
		point->overlap_events ? "" : ", no overlap");
}

const char *objective_text(enum tune_objective objective)
{
	static const char *const names[TUNE_OBJECTIVES] = {
		[TUNE_SWAP] = "Swap: half reads, half writes",
		[TUNE_READ] = "Reads",
		[TUNE_WRITE] = "Writes",
	};

	return names[objective];
}

static bool same_settings(const struct tune_point *a, const struct tune_point *b)
{
	return a->ioengine == b->ioengine && a->thread_count == b->thread_count &&
	       a->single_submit == b->single_submit && a->overlap_events == b->overlap_events;
}

const struct tune_trial *cell_trial(const struct report_page *page, enum tune_objective objective,
				    uint32_t block_size, uint32_t queue_depth, bool *other)
{
	const struct tune_outcome *outcome = page->result->outcome;
	const struct tune_trial *found = NULL;

	*other = false;
	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];

		if (trial->objective != objective || trial->point.block_size != block_size ||
		    trial->point.queue_depth != queue_depth)
			continue;
		if (same_settings(&trial->point, &page->fixed->point)) {
			*other = false;
			return trial;
		}
		*other = true;
		if (!found || trial->mean > found->mean)
			found = trial;
	}
	return found;
}

double round_step(double span, unsigned most)
{
	double step = pow(10, floor(log10(span / most)));

	/* Multiples of 2 and 2.5: 1, 2, 5, 10. */
	for (unsigned i = 0; span / step > most; i++)
		step *= i % 3 == 1 ? 2.5 : 2;
	return step;
}
