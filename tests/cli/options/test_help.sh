#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The help of every command fits a terminal, and has the full text of each option.

. tests/support/command.sh

commands=$("$NVSWAP" --help | sed -n 's/^  \([a-z]\+\) .*/\1/p')
for command in $commands; do
	"$NVSWAP" "$command" --help >"$T/out" 2>"$T/err" && [ -s "$T/out" ] &&
		[ -z "$(grep -E '.{81}' "$T/out")" ]
	result "help_of_${command}_has_80_columns_at_most" $? "$(grep -E '.{81}' "$T/out")"
done
[ "$(wc -w <<<"$commands")" -ge 3 ]
result every_command_is_checked $? "$commands"
"$NVSWAP" bench --help | tr -s ' \n' ' ' >"$T/out"
grep -qF -- "--size SIZE of a model, use only the first tensors up to this many bytes, at least" "$T/out"
result wrapping_loses_no_word $?

exit $((failures > 0))
