#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The command in a cgroup with a memory limit, of either version, as Slurm, systemd and containers make
# them: the kernel would kill it without a word.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. tests/support/command.sh

# of_mount TYPE OPTION: where a mount of that type and option is
of_mount() {
	awk -v type="$1" -v option="$2" '{
		for (i = 7; $i != "-"; i++);
		if ($(i + 1) == type && "," $(i + 3) "," ~ "," option ",") { print $5 != "/" ? $5 : ""; exit }
	}' /proc/self/mountinfo
}

# Sets CGROUP to a new cgroup below this process's own in v1; in v2, where that may hold no processes
# beside others, to one beside it.
make_cgroup() {
	local own
	own=$(sed -n 's/^[0-9]*:\([^:]*,\)\?memory\(,[^:]*\)\?:\(.*\)/\3/p' /proc/self/cgroup)
	if [ -n "$own" ]; then
		LIMIT=memory.limit_in_bytes
		CGROUP=$(of_mount cgroup memory)${own%/}/nvswap-test-$$
	else
		LIMIT=memory.max
		own=$(dirname "$(sed -n 's/^0:://p' /proc/self/cgroup)")
		CGROUP=$(of_mount cgroup2 '.*')${own%/}/nvswap-test-$$
	fi
	mkdir "$CGROUP" 2>/dev/null && [ -w "$CGROUP/$LIMIT" ] && (echo 0 >"$CGROUP/cgroup.procs") 2>/dev/null
}

remove_cgroup() {
	local end=$((SECONDS + 10))
	[ ! -d "${CGROUP:-}" ] || until rmdir "$CGROUP" 2>/dev/null || [ $SECONDS -ge $end ]; do sleep 0.02; done
	rm -rf "$T"
}
trap remove_cgroup EXIT

names="a_pool_beyond_the_limit_is_an_error_that_names_it info_tells_the_limit
the_defaults_of_every_command_fit_the_limit a_pool_of_almost_all_that_is_left_opens
what_is_asked_for_beyond_the_limit_is_an_error
of_processes_that_share_a_limit_those_without_room_get_an_error"
reason=
[ -z "${SANITIZE:-}" ] || reason="a sanitizer needs memory of its own"
[ -n "$reason" ] || make_cgroup || reason="no memory cgroup can be made here"
if [ -n "$reason" ]; then
	for name in $names; do
		echo "skip $name: $reason"
	done
	exit 0
fi

# limited BYTES ARGUMENT...: runs nvswap with that limit
limited() {
	echo "$1" >"$CGROUP/$LIMIT" || return
	shift
	(echo 0 >"$CGROUP/cgroup.procs" && exec "$NVSWAP" "$@") >"$T/out" 2>"$T/err"
}

mkdir "$T/store"
small=(--nvme-path "$T/store" --loops 1)

limited 400000000 bench "${small[@]}" --pool 1g
[ $? = 1 ] && grep -q "needs 1 GiB .* limit of 381.4. MiB ($CGROUP/$LIMIT) leaves 3.* MiB: raise that limit" "$T/err"
result a_pool_beyond_the_limit_is_an_error_that_names_it $? "no error that names $CGROUP/$LIMIT"

limited 400000000 info && grep -q "memory limit  *381.4[67] MiB" "$T/out" &&
	grep -q "memory limit file  *$CGROUP/$LIMIT" "$T/out" &&
	limited 400000000 info --output-format json && python3 - "$T/out" "$CGROUP/$LIMIT" <<'END'
import json, sys
machine = json.load(open(sys.argv[1]))["machine"]
assert abs(machine["memory_limit_bytes"] - 400000000) <= 4096
assert 300000000 < machine["memory_free_bytes"] <= machine["memory_limit_bytes"]
assert machine["memory_limit_file"] == sys.argv[2]
END
result info_tells_the_limit $?

free=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["machine"]["memory_free_bytes"])' <"$T/out")
limited 400000000 bench "${small[@]}" --tensors 8 --tensor-size 1m --pool $((free - (8 << 20)))
result a_pool_of_almost_all_that_is_left_opens $?

failed=
for mode in swap step params randwrite; do
	limited 120000000 bench "${small[@]}" --rw $mode || failed="$failed $mode"
done
for bytes in 120000000 50000000; do
	limited $bytes tune --time 2s --working-set 64m "$T/store" || failed="$failed tune-$bytes"
done
[ -z "$failed" ]
result the_defaults_of_every_command_fit_the_limit $? "these do not:$failed"

failed=
for arguments in "--rw step --tensor-size 64m" "--rw write --bs 16m --iodepth 16"; do
	# shellcheck disable=SC2086
	limited 120000000 bench "${small[@]}" $arguments
	[ $? = 1 ] && grep -q "($CGROUP/$LIMIT)" "$T/err" || failed="$failed; $arguments"
done
[ -z "$failed" ]
result what_is_asked_for_beyond_the_limit_is_an_error $? "no error, or without the limit:$failed"
# Each pool alone fits.
echo 400000000 >"$CGROUP/$LIMIT"
processes=
for i in 1 2 3; do
	mkdir "$T/store$i"
	(echo 0 >"$CGROUP/cgroup.procs" && exec "$NVSWAP" bench --nvme-path "$T/store$i" --pool 250m \
		--runtime 3s --time-based) >"$T/out$i" 2>"$T/err$i" &
	processes="$processes $!"
done
statuses=
for process in $processes; do
	wait "$process"
	statuses="$statuses $?"
done
[ "$(tr ' ' '\n' <<<"$statuses" | sort | tr -d '\n')" = 011 ] && cat "$T"/err? | grep -c "leaves .* raise that limit" | grep -qx 2
result of_processes_that_share_a_limit_those_without_room_get_an_error $? "statuses$statuses: $(cat "$T"/err?)"
[ $failures = 0 ]
