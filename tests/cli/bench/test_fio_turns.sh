#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nvswap bench --compare with fio, if it is installed, and with programs that fail like fio in its
# place.

. tests/support/command.sh
T=$(realpath "$T")
mkdir "$T/store" "$T/bin"

# compare ARGUMENT...: $status, $T/out and $T/err
compare() {
	timeout 100 "$NVSWAP" bench --compare --nvme-path "$T/store" --size 4m --tensor-size 1m \
		--bs 64k --pool 4m "$@" >"$T/out" 2>"$T/err"
	status=$?
}

# Whether the fio of a test has started, and whether it has ended.
has_begun() {
	[ -s "$T/pid" ]
}
has_ended() {
	! grep -qs '^State:[[:space:]]*[^Z]' "/proc/$(cat "$T/pid")/status"
}

nothing_left() {
	[ -z "$(ls -A "$T/store")" ]
}

# fake NAME STATUS PATTERN SCRIPT: with SCRIPT as fio, bench must exit with STATUS and print PATTERN
fake() {
	printf '#!/bin/sh\n%s\n' "$4" >"$T/bin/fio"
	chmod +x "$T/bin/fio"
	PATH=$T/bin:$PATH compare --rw swapout --rounds 1
	[ "$status" = "$2" ] && grep -qE -e "$3" "$T/err" && nothing_left
	result "$1" $?
}

fake a_failing_fio_is_reported 1 'fio exited with 3: it went wrong here' \
	'echo it went wrong >&2; echo here >&2; exit 3'
fake a_killed_fio_is_reported 1 'fio was killed by signal 9' 'kill -9 $$'
fake output_that_is_not_json_is_reported 1 "fio's output:1:1: " 'echo something else'
fake a_failed_job_of_fios_is_reported 1 "fio's output:1:11: this job failed: No space left" \
	'echo "{\"jobs\": [{\"error\": 28}]}"'
fake files_left_by_fio_are_removed 1 'exited with 4' \
	'd=$(sed -n "s/^directory=//p"); touch "$d/.nvswap-compare-$PPID-0.0.0"; exit 4'

printf '#!/bin/sh\n%s\n' "echo \$\$ >'$T/pid'; exec sleep 1000" >"$T/bin/fio"
PATH=$T/bin:$PATH timeout 100 "$NVSWAP" bench --compare --nvme-path "$T/store" --size 4m \
	--tensor-size 1m --pool 4m --rw swapout >"$T/out" 2>"$T/err" &
job=$!
until_true has_begun
kill -TERM "$(pgrep -P $job -f 'bench --compare' | head -n 1)"
wait $job
[ $? = 143 ] && has_ended && nothing_left
result a_signal_ends_fio_too $?

printf '#!/bin/sh\n%s\n' "echo >'$T/store/.nvswap-compare-'\$PPID-0.0.0
	echo \$\$ >'$T/pid'; exec sleep 1000" >"$T/bin/fio"
# killed NAME SIGN: nvswap alone, or with - its process group, as batch systems do
killed() {
	local was_made job
	rm -f "$T/pid"
	PATH=$T/bin:$PATH setsid "$NVSWAP" bench --compare --nvme-path "$T/store" --size 4m \
		--tensor-size 1m --pool 4m --rw swapout >"$T/out" 2>"$T/err" &
	job=$!
	until_true has_begun
	was_made=$(ls -A "$T/store")
	kill -KILL -- "$2$job"
	wait $job 2>/dev/null
	until_true has_ended && until_true nothing_left && [ -n "$was_made" ]
	result "$1" $?
}
killed fio_and_its_files_go_with_nvswap ""
killed files_of_fio_go_with_all_of_the_group -

# Fast in all rounds but the first; records whether nvswap has run since this fio's last turn.
cat >"$T/bin/fio" <<END
#!/bin/sh
bw=1000000000000
[ -e "$T/turns" ] || bw=1
[ -e "$T/log_bw.1.log" ] && echo second >>"$T/turns" || echo first >>"$T/turns"
rm -f "$T/log_bw.1.log"
echo "{\"jobs\": [{\"error\": 0, \"write\": {\"io_bytes\": 1, \"bw_bytes\": \$bw}}]}"
END
PATH=$T/bin:$PATH compare --rw swapout --rounds 3 --write-bw-log "$T/log" --log-avg-msec 10 --output-format json
[ "$status" = 0 ] && [ "$(tr '\n' ' ' <"$T/turns")" = "second first second " ]
result the_order_alternates_between_rounds $?
[ "$status" = 0 ] && python3 -c 'import json, sys
assert 0 < json.load(open(sys.argv[1]))["compare"][0]["ratio"] < 1' "$T/out" 2>>"$T/err"
result the_ratio_is_the_median_of_those_of_the_rounds $?

# Other processes may write to the drive, but not always as much as this fio.
cat >"$T/bin/fio" <<END
#!/bin/sh
dd if=/dev/zero of="$T/much" bs=1M count=128 oflag=direct conv=fsync 2>/dev/null
rm "$T/much"
echo '{"jobs": [{"error": 0, "write": {"io_bytes": 1, "bw_bytes": 1}}]}'
END
leaves_out_fio() {
	PATH=$T/bin:$PATH compare --rw swapout --rounds 1 --output-format json
	[ "$status" = 0 ] && python3 -c 'import json, sys
drives = json.load(open(sys.argv[1])).get("disk_util", [])
sys.exit(any(drive["write_sectors"] * 512 >= 128 << 20 for drive in drives))' "$T/out"
}
left_out disk_figures_leave_out_those_of_fio || until_true leaves_out_fio
result disk_figures_leave_out_those_of_fio $?

mkdir "$T/empty"
env PATH="$T/empty" "$NVSWAP" bench --compare --nvme-path "$T/store" --size 4m --tensor-size 1m \
	--pool 4m --rw swapout >"$T/out" 2>"$T/err"
[ $? = 1 ] && grep -q 'apt-get install fio' "$T/err" && nothing_left
result without_fio_the_error_names_the_package $?

compare --rw step
[ "$status" = 1 ] && grep -q "fio: it has no training steps" "$T/err"
result training_steps_are_refused $?

compare --rw swapout --status-interval 1
[ "$status" = 2 ] && grep -q 'compare reports no status' "$T/err"
result a_status_interval_is_refused $?

if ! command -v fio >/dev/null; then
	echo "skip with_fio: it is not installed"
	exit $failures
fi

# expect NAME EXPRESSION ARGUMENT...: EXPRESSION must be true of the JSON; c is the first job
# compared, a is nvswap, b fio
expect() {
	local name=$1 expression=$2
	shift 2
	! left_out "$name" || return 0
	compare --output-format json "$@"
	[ "$status" = 0 ] && nothing_left && python3 - "$T/out" "$expression" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
c = d["compare"][0]
a, b = c["nvswap"], c["fio"]
M = 1 << 20
sys.exit(not eval(f"({sys.argv[2]})"))
END
	result "$name" $?
}

both="c['ratio'] > 0 and a['cpu_ms_per_gib'] >= 0"
expect swapout_moves_the_bytes "$both and a['write']['io_bytes'] == b['write']['io_bytes'] == 4 * M
	and b['read']['io_bytes'] == 0 and b['write']['bw_bytes'] > 0 and c['rounds'] == 2" \
	--rw swapout --rounds 2
expect swapin_moves_the_bytes "$both and a['read']['io_bytes'] == b['read']['io_bytes'] == 4 * M
	and b['read']['clat_p99_ns'] >= b['read']['clat_p50_ns'] > 0" --rw swapin --rounds 1
expect swap_moves_the_bytes "$both and a['read']['io_bytes'] == a['write']['io_bytes'] == 4 * M
	and b['read']['io_bytes'] + b['write']['io_bytes'] == 8 * M and b['write']['iops'] > 0" \
	--rw swap --rounds 1
for engine in libaio posix; do
	expect "${engine}_has_its_like" "$both and b['write']['io_bytes'] == 4 * M" \
		--rw swapout --rounds 1 --ioengine $engine --iodepth 4
done

name=a_directory_may_have_a_colon_in_its_name
if ! left_out "$name"; then
	mkdir "$T/store/a:b"
	echo '{"aio": {}, "zero_optimization": {"offload_param":
		{"device": "nvme", "nvme_path": "'"$T/store/a:b"'"}}}' >"$T/config.json"
	timeout 100 "$NVSWAP" bench --compare --rounds 1 --config "$T/config.json" --rw read --size 4m \
		>"$T/out" 2>"$T/err" && grep -q '^Compared with fio' "$T/out" &&
		rmdir "$T/store/a:b" && nothing_left
	result "$name" $?
fi

name=jobs_of_files_stand_side_by_side
if ! left_out "$name"; then
	cat >"$T/jobs.ini" <<'END'
[global]
bs=64k
size=2m
[several]
rw=randwrite
numjobs=3
[after]
stonewall
rw=randread
END
	timeout 100 "$NVSWAP" bench --compare --rounds 1 "$T/jobs.ini" --directory "$T/store" \
		>"$T/out" 2>"$T/err" && nothing_left &&
		grep -q '^Compared with fio in turn, 1 round;' "$T/out" &&
		[ "$(grep -cE '^(several|after) .* nvswap +fio +ratio$' "$T/out")" = 2 ] &&
		[ "$(grep -c 'write bw' "$T/out")" = 1 ] && [ "$(grep -c 'read bw' "$T/out")" = 1 ]
	result "$name" $?
fi

exit $((failures > 0))
