#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Each layer of src/, and each folder of the command, includes its own headers and those of folders below
# it, and no others. The search of `nvswap tune` knows neither drives nor the command. Programs of bench/ use
# the public interface alone, but for the one that measures the kernels. No file calls one that calls it, by
# way of others too; in layers whose internal header gives the order of their files, each file calls only
# those before it. Documents name files that exist.
set -uo pipefail
BUILD=${BUILD:-build}
cd "$(dirname "$0")/../.." || exit
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

# found_none NAME FOUND: the test passes if nothing was found
found_none() {
	[ -z "$2" ] || head -n 20 <<<"$2"
	check "$1" [ -z "$2" ]
}

# layer: the folders that it may include, besides the public header; the layer's interface swap/swap.h in
# the calls that it declares; and in a folder of the command its own files such as cli/commands.h
layers="
base: base
trace: base trace
config: base config
topo: base topo
aio: base trace config topo aio
pool: base topo aio pool
memory: base topo aio pool memory
store: base config topo aio store
swap/residency: base trace config topo aio pool store swap/residency
swap/room: base trace config topo aio pool store swap/residency swap/room
swap/moves: base trace config topo aio pool store swap/residency swap/room swap/moves
swap/calls: base trace config topo aio pool store swap/residency swap/room swap/moves swap/calls
swap: base trace config topo aio pool store swap
optim/kernels: config optim/kernels
optim: base trace config topo pool swap optim
checkpoint: base swap optim config topo checkpoint
cli: base cli
cli/options: base cli/options
cli/modes/model: base cli/options cli/modes/model
cli/jobs: base cli/options cli/modes/model cli/jobs
cli/modes: base cli/options cli/jobs cli/modes
cli/replay: base cli/options cli/jobs cli/modes cli/replay
cli/compare: base cli/options cli/compare
cli/report: base cli/options cli/modes/model cli/jobs cli/report
cli/info: base cli/options cli/info
cli/store: base cli/options cli/store
cli/tune: base cli/options cli/info cli/modes cli/tune
cli/tune/search: base cli/tune/search
"
while IFS=': ' read -r layer allowed; do
	[ -n "$layer" ] || continue
	case $layer in
	cli/tune/search) own= ;;
	swap/calls) own='|^swap/swap[.]h$' ;;
	cli/*) own='|^cli/[^/]+$' ;;
	*) own= ;;
	esac
	found=$(grep -rhoE '^#include "[^"]+"' "src/$layer" | tr -d '"' | sed 's/#include //' |
		grep -vE "^[^/]+$|^(${allowed// /|})/$own" | sort -u)
	found_none "${layer}_includes_only_layers_below" "$found"
done <<<"$layers"

# "caller callee symbol" for each call from one file of src/ to another
mapfile -t objects < <(find src -name '*.c' | sed "s|\(.*\)c$|$BUILD/\1o|")
# Checks of whole states call too.
for i in "${!objects[@]}"; do
	checked=$BUILD/checked/${objects[i]#"$BUILD"/}
	[ ! -e "$checked" ] || objects[i]=$checked
done
calls=$(nm -A -g "${objects[@]}" | sed -E "s|^$BUILD/(checked/)?src/||" | awk '
	{ split($1, path, ".o:") }
	$2 == "U" { caller[++n] = path[1]; symbol[n] = $3; next }
	{ file[$3] = path[1] }
	END {
		for (i = 1; i <= n; i++)
			if (symbol[i] in file && file[symbol[i]] != caller[i])
				print caller[i], file[symbol[i]], symbol[i]
	}') || calls=
loops=$(cut -d ' ' -f 1,2 <<<"$calls" | tsort 2>&1 >/dev/null)
found_none no_file_calls_one_that_calls_it "${loops//tsort: /}"
check the_calls_between_files_are_found [ -n "$calls" ]

for layer in aio checkpoint config optim store swap; do
	header=$(grep -rl '^ \* The order of the files, from the bottom' "src/$layer")
	wrong=$(awk -v layer="$layer" '
		function place(path) {
			sub("^" layer "/", "", path)
			if (!(path in position))
				sub(".*/", "", path)
			if (path in position) {
				found[path] = 1
				return position[path]
			}
			print path ".c is not in the order"
			return 0
		}
		FILENAME == ARGV[1] {
			if (/^ \*\t[a-z]+: /)
				for (i = 3; i <= NF; i++)
					position[$i] = ++n
			next
		}
		NF == 1 {
			at = place($1)
			if (at && taken[at]++)
				print $1 ".c has the place of another file"
			next
		}
		$1 ~ "^" layer "/" && $2 ~ "^" layer "/" && place($1) < place($2) { print $1 ".c calls " $3 " of " $2 ".c" }
		END {
			for (name in position)
				if (!(name in found))
					print name ": no such file"
		}' "$header" <(find "src/$layer" -name '*.c' -printf '%P\n' | sed 's/\.c$//') - <<<"$calls" | sort -u)
	found_none "${layer}_calls_only_files_before_in_its_order" "$wrong"
done

found=$(grep -HE '^#include "' bench/*.c bench/*/*.[ch] | grep -vE '"(nvswap.h|measure.h|support/measure.h)"|^bench/adam.c:')
found_none bench_uses_the_public_interface "$found"
exit $status
