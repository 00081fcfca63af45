/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of the report. Requires the C locale, which the command never changes. */
#include <math.h>

#include "base/error.h"
#include "cli/tune/report/report.h"

/* Decimals for three significant digits. */
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
		plural(point->thread_count), nvs_ioengine_name(point->ioengine),
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

const struct tune_trial *cell_trial(const struct report_page *page, enum tune_objective objective,
				    uint32_t block_size, uint32_t queue_depth, bool *other)
{
	const struct tune_outcome *outcome = page->result->outcome;
	const struct tune_trial *found = NULL;
	struct tune_point wanted = page->fixed->point;

	wanted.block_size = block_size;
	wanted.queue_depth = queue_depth;
	*other = false;
	for (size_t i = 0; i < outcome->n; i++) {
		const struct tune_trial *trial = &outcome->trials[i];
		const struct tune_point *point = &trial->point;

		if (trial->objective != objective || point->block_size != block_size ||
		    point->queue_depth != queue_depth)
			continue;
		if (point->ioengine == wanted.ioengine &&
		    point->thread_count == wanted.thread_count &&
		    point->single_submit == wanted.single_submit &&
		    point->overlap_events == wanted.overlap_events) {
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

	/* Multiplied by 2, 2.5 and 2: 1, 2, 5, 10. */
	for (unsigned i = 0; span / step > most; i++)
		step *= i % 3 == 1 ? 2.5 : 2;
	return step;
}
