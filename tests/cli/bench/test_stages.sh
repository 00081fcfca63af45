#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Several jobs in a run: stages, the other jobs when one fails, is killed or is asked to end, and
# the output while they run. Works in its own directory under the build directory.

. tests/support/bench.sh
# Ends processes that a failed test leaves running.
trap 'kill -9 -$pid 2>/dev/null; rm -rf "$T"' EXIT

# jobs: makes the job file from standard input, after options common to all tests
jobs() {
	{
		printf '%s\n' '[global]' rw=swap "directory=$T/store" tensors=8 tensor-size=256k pool=2m
		cat
	} >"$T/jobs.ini"
}

# start ARGUMENT...: runs the job file in the background, in its own process group; sets $pid
start() {
	: >"$T/err"
	setsid "$NVSWAP" bench "$T/jobs.ini" --output-format json "$@" >"$T/out" 2>"$T/err" &
	pid=$!
}

# has_ended PID: also if its parent has not waited for it yet
has_ended() {
	! grep -qs '^State:[[:space:]]*[^Z]' "/proc/$1/status"
}

# ended: waits for the started process; sets $status
ended() {
	until_true has_ended "$pid" || kill -9 -"$pid"
	wait "$pid"
	status=$?
}

# drawn PATTERN: whether the line of --eta=always matched PATTERN
drawn() {
	tr '\r' '\n' <"$T/err" | grep -qE "$1"
}
# A stage has begun to measure.
measures() {
	drawn "^swap .*IOPS"
}

# process_of RANK: prints the process of the job of $pid whose store has that rank
process_of() {
	local child
	for child in $(cat "/proc/$pid/task/$pid/children"); do
		ls -l "/proc/$child/fd" 2>/dev/null | grep -q "/rank$1/" && echo "$child" && return
	done
	return 1
}

# json NAME EXPRESSION ARGUMENT...
json() {
	ran "$1" "$2" "$T/jobs.ini" "${@:3}"
}

nothing_is_left() {
	[ -z "$(find "$T/store" -type f)" ]
	result "$1" $? "$(find "$T/store" -type f)"
}

# ---- Jobs of one stage, and of several

# Only filling takes time, so much that a job that does not wait for it begins before its end.
begin_and_fill="lambda job: before + 1e3 * job['swap']['first_swapout_bytes'] /
	job['swap']['first_swapout_bw_bytes'] - 1"
jobs <<'J'
rw=swapin
[slow]
tensors=100
bs=4k
iodepth=1
[fast]
[late]
stonewall
J
before=$(date +%s%3N)
json job_that_fills_fast_waits_for_the_slow_one \
	"begin(jobs['fast.0']) >= ($begin_and_fill)(jobs['slow.0'])"
holds stonewall_separates "begin(jobs['late.0']) >= max(end(jobs[name]) for name in
	('slow.0', 'fast.0')) - 1 and
	[jobs[f'{name}.0']['groupid'] for name in ('slow', 'fast', 'late')] == [0, 0, 1]"

jobs <<'J'
[a]
numjobs=3
verify
[b]
loops=2
J
json clones_have_stores_and_seeds_of_their_own \
	"[jobs[f'a.{i}']['config']['nvswap']['rank'] for i in range(3)] == [0, 1, 2] and
	 jobs['b.0']['config']['nvswap']['rank'] == 3 and
	 [jobs[f'a.{i}']['swap']['seed'] for i in range(3)] == [1, 2, 3] and
	 all(jobs[f'a.{i}']['swap']['verify_errors'] == 0 and
	     jobs[f'a.{i}']['swap']['verified_bytes'] > 0 for i in range(3)) and
	 bytes_of(jobs['b.0']) == 2 * bytes_of(jobs['a.0']) == 4 * 8 * 262144"
jobs <<'J'
[a]
trace=TRACE
[b]
trace=TRACE
J
sed -i "s|TRACE|$T/t.json|" "$T/jobs.ini"
json traces_have_the_numbers_of_the_jobs \
	"all(json.load(open(f'{T}/t.{i}.json'))['traceEvents'] for i in (1, 2)) and
	 not os.path.exists(f'{T}/t.json')"

# ---- Limits of time, rate and size

jobs <<<'[a]'
json runtime_bounds_loops "bytes_of(jobs['a.0']) == 2 * 8 * 262144" --runtime 1h
json runtime_ends_loops "jobs['a.0']['job_runtime'] >= 200 and
	bytes_of(jobs['a.0']) % 262144 == 0" --runtime 200ms --loops 1000000000
goes_on="bytes_of(jobs['a.0']) > 2 * 8 * 262144"
start --runtime 1h --time_based --status-interval 100ms
until_true true_of "$goes_on" >"$T/why"
kill -TERM $pid
ended
holds time_based_goes_on "$goes_on"
json ramp_time_is_not_in_the_figures "bytes_of(jobs['a.0']) == 8 * 262144 and
	j['engine']['write_bytes'] == 8 * 262144 and j['swap']['store_bytes'] > 0 and
	j['swap']['pool_bytes'] > 0" --rw swapout --ramp_time 200ms
# A batch takes at most a twentieth of a second, here one tensor.
json rate_bounds_swap "all(0 <= job[d]['io_bytes'] <= (4 << 20) * job['job_runtime'] / 1e3 * 1.1 +
	2 * 262144 for job in jobs.values() for d in ('read', 'write')) and
	bytes_of(jobs['a.0']) > 0 and 500 <= jobs['a.0']['job_runtime']" \
	--rate 4m --runtime 500ms --time-based

# ---- Jobs that end early

jobs <<'J'
[whole]
time_based
runtime=1h
[none]
tensor-size=64m
[later]
stonewall
J
run bench "$T/jobs.ini" --output-format json
[ "$status" = 1 ] && grep -q "^nvswap: job none (2): .*tensor.0" "$T/err"
result job_that_cannot_begin_ends_its_stage $? "exit status $status"
holds jobs_that_did_not_run_are_reported "jobs['whole.0']['error'] == 125 and
	'another job' in jobs['whole.0']['error_text'] and jobs['later.0']['error'] == 125 and
	jobs['none.0']['error'] == 7"
nothing_is_left no_store_stays_of_a_stage_that_did_not_begin

jobs <<'J'
time_based
runtime=1h
[victim]
[other]
runtime=1s
J
start --eta always
until_true measures
victim=$(process_of 0)
kill -9 "$victim"
ended
[ "$status" = 1 ] && tr '\r' '\n' <"$T/err" |
	grep -q "nvswap: job victim (1): its process was ended by signal 9 (Killed)"
result killed_job_is_reported $? "exit status $status"
holds others_go_on_when_a_job_is_killed "jobs['victim.0']['error'] == 130 and
	jobs['other.0']['error'] == 0 and jobs['other.0']['job_runtime'] >= 1000"
jobs <<<'[next]'
json the_next_run_reuses_the_store_of_a_killed_job "bytes_of(jobs['next.0']) == 2 * 8 * 262144"
nothing_is_left next_run_removes_what_a_killed_job_left

jobs <<'J'
time_based
runtime=1h
[a]
numjobs=2
[b]
stonewall
J
start --eta always --status-interval 100ms
until_true true_of "all(bytes_of(jobs[f'a.{i}']) > 0 for i in (0, 1))" >"$T/why"
kill -TERM $pid
ended
[ "$status" = 143 ] && [ "$(tr '\r' '\n' <"$T/err" | grep -c "nvswap: ")" = 1 ] &&
	grep -q "stopped by a signal" "$T/err"
result signal_ends_all_jobs $? "exit status $status"
holds stopped_jobs_report_their_measurement \
	"all(jobs[f'a.{i}']['error'] == 4 and bytes_of(jobs[f'a.{i}']) > 0 for i in (0, 1)) and
	 jobs['b.0']['error'] == 4 and bytes_of(jobs['b.0']) == 0 and
	 jobs['b.0']['error_text'] == 'not run: stopped by a signal'"
holds jobs_of_a_stage_overlap "max(begin(jobs[name]) for name in ('a.0', 'a.1')) <
	min(end(jobs[name]) for name in ('a.0', 'a.1'))"
nothing_is_left no_store_stays_after_a_signal

# Like a terminal: to the parent and to each job.
start --eta always
until_true measures
kill -TERM -$pid
ended
[ "$status" = 143 ] && [ "$(tr '\r' '\n' <"$T/err" | grep -c "nvswap: ")" = 1 ]
result signal_to_the_whole_group_ends_all_jobs $? "exit status $status"
nothing_is_left no_store_stays_after_a_signal_to_the_group

start --eta always
until_true measures
children=$(cat "/proc/$pid/task/$pid/children")
kill -9 $pid
ended 2>/dev/null
orphans=0
for child in $children; do
	until_true has_ended "$child" || orphans=1
done
result jobs_end_with_their_parent $orphans
nothing_is_left no_store_stays_when_the_parent_is_killed

# A job that computes for an hour between its swaps: its process is in clock_nanosleep().
jobs <<'J'
rw=params
compute-us=3600000000
[a]
J
computes() {
	grep -qsE "^(230|115) " "/proc/$(process_of 0)/syscall"
}
start
until_true computes
computing=$?
kill -TERM $pid
ended
[ $computing = 0 ] && [ "$status" = 143 ]
result signal_ends_computing $? "exit status $status"

# ---- Output while jobs run

jobs <<'J'
time_based
runtime=700ms
[a]
[b]
rw=swapout
[c]
stonewall
loops=1
J
printed="len(docs) >= 3 and
	all(len(doc['jobs']) == 3 for doc in docs) and
	all(bytes_of(by_name(early)[name]) <= bytes_of(by_name(late)[name])
	    for early, late in zip(docs, docs[1:]) for name in jobs) and
	any(0 < bytes_of(by_name(doc)['a.0']) < bytes_of(jobs['a.0']) and
	    by_name(doc)['a.0']['read']['clat_ns']['N'] > 0 for doc in docs[:-1])"
start --status-interval 100ms --runtime 1h
until_true true_of "$printed" >"$T/why"
kill -TERM $pid
ended
holds status_is_printed_at_intervals "$printed"
name=figures_do_not_go_back_where_a_job_does_not_answer
if ! left_out "$name"; then
	start --status-interval 100ms --runtime 1h
	until_true true_of "$printed" >"$T/why"
	kill -STOP "$(process_of 1)"
	# Longer than the parent waits for an answer.
	sleep 1.5
	kill -CONT "$(process_of 1)"
	docs=$(grep -c '^{' "$T/out")
	until_true true_of "len(docs) >= $docs + 2" >"$T/why"
	kill -TERM $pid
	ended
	holds "$name" "$printed"
fi
printed_as_text() {
	[ "$(grep -c "^a: rw=swap, group 0" "$T/out")" -ge 3 ]
}
start --status-interval 100ms --runtime 1h --output-format normal
until_true printed_as_text && kill -TERM $pid
ended
printed_as_text && [ "$status" = 143 ] && [ "$(grep -c "^nvswap " "$T/out")" = 1 ]
result status_is_printed_as_text $? "$(cat "$T/out")"
run bench "$T/jobs.ini" --runtime 50ms --output-format normal,json
[ "$status" = 0 ] && python3 - "$T/out" >"$T/err" 2>&1 <<'PY'
import json, sys
text = open(sys.argv[1]).read()
doc, end = json.JSONDecoder().raw_decode(text)
assert "\na: rw=swap, group 0" in text[end:], text[end:]
PY
result several_formats_are_in_the_order_of_fios $?

run bench "$T/jobs.ini" --runtime 50ms --eta never
[ ! -s "$T/err" ]
result eta_never_draws_nothing $?
start --eta always --runtime 20s
line="^swap(out)? \(2\) .* GB/s read, .* GB/s written, .* IOPS, .* s left"
until_true drawn "$line"
result eta_always_draws_without_a_terminal $?
kill -TERM $pid
ended

[ $failures = 0 ]
