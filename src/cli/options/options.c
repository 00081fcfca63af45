/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of options as a whole: finding one by its names, giving it a value in a set of them,
 * and what can't stand beside it. How a text becomes a value is in options_values.c, what is typed
 * in options_line.c.
 */
#include "options.h"

#include <errno.h>
#include <string.h>

#include "commands.h"
#include "options_values.h"

static char dashed(char letter)
{
	return letter == '_' ? '-' : letter;
}

/*
 * How many slips lead from one text to the other, up to `max`: a letter too many, too few, another,
 * or two neighbours in each other's place. Of texts short enough to be option names.
 */
static unsigned slips(const char *a, const char *b, unsigned max)
{
	enum { LETTERS = 48 };
	unsigned rows[3][LETTERS]; /* of this letter of a, and of the two before it */
	size_t na = strlen(a), nb = strlen(b);

	if (nb >= LETTERS)
		return max + 1;
	for (unsigned j = 0; j <= nb; j++)
		rows[0][j] = j;
	for (unsigned i = 1; i <= na; i++) {
		unsigned *row = rows[i % 3];
		const unsigned *before = rows[(i + 2) % 3], *second = rows[(i + 1) % 3];

		row[0] = i;
		for (unsigned j = 1; j <= nb; j++) {
			bool same = dashed(a[i - 1]) == dashed(b[j - 1]);
			unsigned least = before[j] < row[j - 1] ? before[j] : row[j - 1];

			row[j] = least + 1 < before[j - 1] + !same ? least + 1
								   : before[j - 1] + !same;
			if (i > 1 && j > 1 && dashed(a[i - 1]) == dashed(b[j - 2]) &&
			    dashed(a[i - 2]) == dashed(b[j - 1]) && second[j - 2] + 1 < row[j])
				row[j] = second[j - 2] + 1;
		}
	}
	return rows[na % 3][nb];
}

const char *nearest_name(const char *text, const char *const *names, unsigned n)
{
	const char *nearest = NULL;
	/* Two slips, and fewer in a short word, where they would leave nothing of it. */
	unsigned best = strlen(text) < 5 ? 1 : 2;

	for (unsigned i = 0; i < n; i++) {
		unsigned distance = slips(text, names[i], best);

		if (distance > best || (nearest && distance == best))
			continue;
		best = distance;
		nearest = names[i];
	}
	return nearest;
}

bool option_names_equal(const char *a, const char *b)
{
	while (*a && dashed(*a) == dashed(*b)) {
		a++;
		b++;
	}
	return !*a && !*b;
}

const struct option_spec *options_find(const struct command_spec *command, const char *name)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (option_names_equal(name, spec->name))
			return spec;
		for (const char *const *alias = spec->aliases; alias && *alias; alias++)
			if (option_names_equal(name, *alias))
				return spec;
	}
	return NULL;
}

static bool lists(const struct option_spec *spec, const struct option_spec *other)
{
	for (const char *const *name = spec->excludes; name && *name; name++)
		if (!strcmp(*name, other->name))
			return true;
	return false;
}

/* Whichever of the two has it in its list. */
static bool exclude_each_other(const struct option_spec *a, const struct option_spec *b)
{
	return lists(a, b) || lists(b, a);
}

int options_check_exclusions(const struct command_spec *command, const struct options_given *given,
			     const char *where)
{
	const struct option_spec *specs = command->options;

	for (unsigned i = 0; i < command->noptions; i++)
		for (unsigned j = 0; j < i && given->text[i]; j++) {
			if (!given->text[j] || !exclude_each_other(&specs[i], &specs[j]))
				continue;
			say("%s%s%s and %s%s exclude each other: give one of them",
			    where ? where : "", where ? ": " : "--", specs[i].name,
			    where ? "" : "--", specs[j].name);
			return -EINVAL;
		}
	return 0;
}

/* What was given later stands, and what it can't stand beside is as if it had not been given. */
static void take_back_excluded(const struct command_spec *command, const struct option_spec *spec,
			       void *values, struct options_given *given)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *other = &command->options[i];

		if (!given->text[i] || !exclude_each_other(spec, other))
			continue;
		memcpy((char *)values + other->offset,
		       (const char *)command->defaults + other->offset,
		       option_value_bytes(other->type));
		given->text[i] = NULL;
	}
}

int options_set(const struct command_spec *command, const char *key, const char *value,
		const char *where, void *values, struct options_given *given)
{
	const struct option_spec *spec = options_find(command, key);
	struct option_source source = {.spec = spec, .where = where, .text = value};
	int rc;

	if (!spec)
		return -ENOENT;
	if (spec->scope == OPTION_OF_LINE) {
		say("%s: %s stands on the command line alone, as --%s", where, key, spec->name);
		return -EINVAL;
	}
	rc = option_store(&source, (char *)values + spec->offset);
	if (rc)
		return rc;
	take_back_excluded(command, spec, values, given);
	given->text[spec - command->options] = value ? value : "1";
	return 0;
}

void options_copy(const struct command_spec *command, const void *from,
		  const struct options_given *from_given, void *to, struct options_given *to_given)
{
	for (unsigned i = 0; i < command->noptions; i++) {
		const struct option_spec *spec = &command->options[i];

		if (!from_given->text[i])
			continue;
		take_back_excluded(command, spec, to, to_given);
		memcpy((char *)to + spec->offset, (const char *)from + spec->offset,
		       option_value_bytes(spec->type));
		to_given->text[i] = from_given->text[i];
	}
}
