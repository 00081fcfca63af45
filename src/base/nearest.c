/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nearest name by edit distance: letters inserted, deleted, replaced, or swapped with their
 * neighbour. '-' and '_' are equal, because option names use one and keys the other.
 */
#include "base/text.h"

#include <stdbool.h>
#include <string.h>

#include "base/numbers.h"

#define LETTERS_MAX 48 /* longer texts have no nearest name */

static char dashed(char letter)
{
	return letter == '_' ? '-' : letter;
}

/* Returns `limit` where the distance is that or more; most names are seen to be far in a few
 * letters. */
static unsigned edit_distance(const char *a, size_t na, const char *b, size_t nb, unsigned limit)
{
	unsigned rows[3][LETTERS_MAX + 1]; /* rows of this letter of a, and of the two before it */

	if ((na > nb ? na - nb : nb - na) >= limit)
		return limit;
	for (unsigned j = 0; j <= nb; j++)
		rows[0][j] = j;
	for (unsigned i = 1; i <= na; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *before = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];
		unsigned best = i;

		row[0] = i;
		for (unsigned j = 1; j <= nb; j++) {
			bool same = dashed(a[i - 1]) == dashed(b[j - 1]);

			row[j] = min_u64(min_u64(before[j], row[j - 1]) + 1, before[j - 1] + !same);
			if (i > 1 && j > 1 && dashed(a[i - 1]) == dashed(b[j - 2]) &&
			    dashed(a[i - 2]) == dashed(b[j - 1]))
				row[j] = min_u64(row[j], second[j - 2] + 1);
			best = min_u64(best, row[j]);
		}
		/* A swap of neighbours reaches back over one row. */
		if (best > limit)
			return limit;
	}
	return rows[na % 3][nb];
}

const char *nearest_name(const char *text, const char *const *names, unsigned n)
{
	const char *nearest = NULL;
	size_t length = strlen(text);
	/* The limit of the distance; without it, short words would match anything. */
	unsigned limit = length < 5 ? 2 : length < 12 ? 3 : (unsigned)length / 3;

	for (unsigned i = 0; i < n && length <= LETTERS_MAX; i++) {
		size_t name_length = strlen(names[i]);
		unsigned distance;

		if (name_length > LETTERS_MAX)
			continue;
		distance = edit_distance(text, length, names[i], name_length, limit);
		if (distance < limit) {
			limit = distance;
			nearest = names[i];
		}
	}
	return nearest;
}
