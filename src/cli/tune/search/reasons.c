/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fate of each trial, and the explanation of the choice: why it is preferred, or why it is
 * uncertain.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/tune/search/state.h"

static void __attribute__((format(printf, 3, 4)))
append(char *text, size_t nbytes, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + used, nbytes - used, format, args);
	va_end(args);
}

/*
 * Sets the fates of trials that are not finalists; some may be as fast. Returns the number of
 * these.
 */
static size_t judge(struct search *search, const struct choice *choice)
{
	const struct tune_point *chosen = &search->trials[choice->chosen].point;
	double enough = search->trials[choice->fastest].mean * (1 - search->rules->tolerance);
	size_t open = 0;

	for (size_t i = 0; i < search->n; i++) {
		struct tune_trial *trial = &search->trials[i];

		if (trial->objective != search->rules->objective || trial->fate == TUNE_ONLY_MAP)
			continue;
		if (!search_allowed(search, i))
			trial->fate = TUNE_OVER;
		else if (!trial->finalist && trial->mean >= enough)
			trial->fate = space_prefers(search->space, &trial->point, chosen)
					      ? TUNE_OPEN
					      : TUNE_TIE;
		open += trial->fate == TUNE_OPEN;
	}
	search->trials[choice->chosen].fate = TUNE_CHOSEN;
	return open;
}

static void say_point(const struct search *search, const struct tune_point *point, char *text,
		      size_t nbytes)
{
	bool other = point->ioengine != search->space->ioengines[0];

	append(text, nbytes, "%s%s%s%sblock_size %u, queue_depth %u and %u worker%s",
	       other ? nvs_ioengine_name(point->ioengine) : "", other ? ", " : "",
	       point->single_submit ? "single_submit, " : "",
	       point->overlap_events ? "" : "no overlap_events, ", point->block_size,
	       point->queue_depth, point->thread_count, plural(point->thread_count));
}

static size_t count(const struct search *search, enum tune_fate fate)
{
	size_t n = 0;

	for (size_t i = 0; i < search->n; i++)
		n += search->trials[i].finalist && search->trials[i].fate == fate;
	return n;
}

/* Compares the choice with the fastest point, if they differ. */
static void say_beside(const struct search *search, const struct tune_outcome *outcome, char *text,
		       size_t nbytes)
{
	const struct tune_trial *chosen = outcome->chosen, *fastest = outcome->fastest;

	if (chosen->finalist)
		append(text, nbytes, ": %.1f %% (+- %.1f) of the fastest (", 100 * chosen->to_best,
		       100 * chosen->to_best_half_width);
	else
		append(text, nbytes, ": %.1f %% of the fastest (",
		       100 * chosen->mean / fastest->mean);
	say_point(search, &fastest->point, text, nbytes);
	append(text, nbytes, "), %s.",
	       space_as_deep(&chosen->point, &fastest->point)
		       ? "whose settings are not the defaults"
		       : "which is less preferred");
}

static void say_why(const struct search *search, const struct tune_outcome *outcome, char *text,
		    size_t nbytes)
{
	size_t measured = 0, finalists = 1 + count(search, TUNE_TIE) + count(search, TUNE_SLOWER);

	say_point(search, &outcome->chosen->point, text, nbytes);
	append(text, nbytes, " move %.3g GB/s", outcome->chosen->mean / 1e9);
	if (outcome->chosen != outcome->fastest)
		say_beside(search, outcome, text, nbytes);
	else if (outcome->chosen->finalist && outcome->certain)
		append(text, nbytes,
		       ", the fastest of %zu finalist%s; no preferred setting is within "
		       "%.3g %% of it.",
		       finalists, plural(finalists), 100 * search->rules->tolerance);
	else if (outcome->chosen->finalist)
		append(text, nbytes, ", the fastest of %zu finalist%s.", finalists,
		       plural(finalists));
	else
		append(text, nbytes, ", the fastest point that there was time to measure.");
	for (size_t i = 0; i < search->n; i++)
		measured += search->trials[i].objective == search->rules->objective &&
			    search->trials[i].fate != TUNE_ONLY_MAP;
	append(text, nbytes, " %zu of the %zu combinations were measured.", measured,
	       space_points(search->space));
}

static void say_unsure(const struct search *search, const struct choice *choice, size_t open,
		       char *text, size_t nbytes)
{
	size_t equals = 1 + count(search, TUNE_TIE);
	const char *lacking = search->out_of_writes && !search->out_of_time ? "writes" : "time";

	if (!choice->told_apart && equals > 1)
		append(text, nbytes,
		       "The rounds can't distinguish %zu finalists with certainty, and the most "
		       "preferred of these is chosen. More %s may distinguish them. ",
		       equals, lacking);
	else if (!choice->told_apart)
		append(text, nbytes,
		       "The search ended before the choice was certain. More %s may help. ",
		       lacking);
	if (open)
		append(text, nbytes,
		       "%zu preferred setting%s seem%s as fast and %s not measured against it. ",
		       open, open == 1 ? "" : "s", open == 1 ? "s" : "",
		       open == 1 ? "was" : "were");
	if (*text)
		text[strlen(text) - 1] = '\0';
}

void search_judge(struct search *search, const struct choice *choice, struct tune_outcome *outcome)
{
	size_t open = judge(search, choice);

	outcome->chosen = &search->trials[choice->chosen];
	outcome->fastest = &search->trials[choice->fastest];
	outcome->certain = choice->told_apart && !open;
	say_why(search, outcome, outcome->why, sizeof(outcome->why));
	say_unsure(search, choice, open, outcome->unsure, sizeof(outcome->unsure));
}
