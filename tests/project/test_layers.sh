#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Each layer of src/, and each folder of the command, includes its own headers and those of folders below
# it, and no others. The search of `nvswap tune` knows neither drives nor the command. Programs of bench/ use
# the public interface alone, but for the one that measures the kernels.
set -u
BUILD=${BUILD:-build}
cd "$(dirname "$0")/../.." || exit

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
cli/report: base cli/options cli/modes/model cli/jobs cli/compare cli/report
cli/fio: base cli/options cli/modes/model cli/jobs cli/compare cli/report cli/fio
cli/forecast: base cli/options cli/jobs cli/modes cli/replay cli/forecast
cli/info: base cli/options cli/info
cli/store: base cli/options cli/store
cli/tune: base cli/options cli/info cli/tune
cli/tune/search: base cli/tune/search
"
status=0
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
	if [ -z "$found" ]; then
		echo "ok ${layer}_includes_only_layers_below"
	else
		echo "not ok ${layer}_includes_only_layers_below"
		echo "src/$layer includes $found"
		status=1
	fi
done <<<"$layers"

# The files of src/swap call only those before them in the order that its internal header gives.
before=""
order=$(sed -n 's/^ \*\t[a-z]*: //p' src/swap/residency/internal.h)
objects=$(find src/swap -name '*.c' | sed "s|\(.*\)c$|$BUILD/\1o|")
sources=$(find src/swap -name '*.c' -exec basename {} .c \;)
wrong=$(comm -3 <(tr ' ' '\n' <<<"$order" | sort) <(sort <<<"$sources") | tr -d '\t' | tr '\n' ' ')
[ -z "$wrong" ] || wrong="not in both the order and the folder: $wrong"
for file in $order; do
	object=$(grep "/$file.o$" <<<"$objects")
	later=$(comm -12 <(nm -u "$object" | awk '{print $2}' | sort) \
		<(for o in $objects; do
			case " $before $file " in *" $(basename "$o" .o) "*) ;; *) nm --defined-only -g "$o" ;; esac
		done | awk '{print $3}' | sort -u) | tr '\n' ' ')
	[ -z "$later" ] || wrong="$wrong
$file.c calls $later"
	before="$before $file"
done
if [ -z "$wrong" ]; then
	echo "ok swap_calls_only_files_before_in_its_order"
else
	echo "not ok swap_calls_only_files_before_in_its_order"
	echo "$wrong"
	status=1
fi

found=$(grep -HE '^#include "' bench/*.c bench/*/*.[ch] | grep -vE '"(nvswap.h|measure.h|support/measure.h)"|^bench/adam.c:')
if [ -z "$found" ]; then
	echo "ok bench_uses_the_public_interface"
else
	echo "not ok bench_uses_the_public_interface"
	echo "$found"
	status=1
fi
exit $status
