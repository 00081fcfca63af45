#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Reports follow no link that another user could have planted, messages and reports obey no
# control character, and a file that is no job file is not quoted.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=tests/support/command.sh
. tests/support/command.sh
mkdir "$T/drive"

same() { [ "$(cat "$T/victim")" = precious ]; }

# refuses NAME FILE COMMAND...: the command fails, names FILE, and the victim stays
refuses() {
	local name=$1 file=$2
	shift 2
	echo precious >"$T/victim"
	! "$NVSWAP" "$@" >"$T/out" 2>"$T/err" && same && grep -q "$file.*symbolic link" "$T/err"
	result "$name" $?
}

bench=(bench --nvme-path "$T/drive" --rw read --bs 4k --size 64k --eta never)
ln -s victim "$T/link"
refuses an_output_follows_no_link "$T/link" info --nvme-path . --output "$T/link"
refuses a_report_of_bench_follows_no_link "$T/link" "${bench[@]}" --output "$T/link"
refuses a_result_of_tune_follows_no_link "$T/link" tune "$T/drive" --output "$T/link"

# Links to directories: one's own, and one of another user in a directory that all may write to.
mkdir "$T/results" "$T/shared"
chmod 1777 "$T/shared"
ln -s results "$T/mine"
"$NVSWAP" info --nvme-path . --output "$T/mine/out" >"$T/out" 2>"$T/err" && [ -s "$T/results/out" ]
result a_link_of_the_user_to_a_directory_is_followed $?
ln -s ../results "$T/shared/planted"
if [ "$(id -u)" = 0 ] && chown -h 65534 "$T/shared/planted"; then
	refuses a_planted_link_to_a_directory_is_not_followed shared/planted \
		info --nvme-path . --output "$T/shared/planted/out"
else
	echo "skip a_planted_link_to_a_directory_is_not_followed: needs root, to make a link of another user"
fi
rm "$T/shared/planted"
chmod 777 "$T/shared"
ln -s ../results "$T/shared/planted"
refuses a_link_that_others_can_replace_is_not_followed shared/planted \
	info --nvme-path . --output "$T/shared/planted/out"

"$NVSWAP" info --nvme-path . --output /dev/stdout >"$T/out" 2>"$T/err" && [ -s "$T/out" ]
result standard_output_may_be_named $?
"$NVSWAP" info --nvme-path . --output >(cat >"$T/piped") >"$T/out" 2>"$T/err" && until_true test -s "$T/piped"
result a_pipe_may_be_named $?

# obeys_nothing NAME: no control character came through, and the command failed
obeys_nothing() {
	"$NVSWAP" "${@:2}" >"$T/out" 2>"$T/err"
	[ $? != 0 ] && [ -s "$T/err" ] && ! cat "$T/out" "$T/err" | LC_ALL=C grep -q $'\e\|\xc2\x9b\|\xe2\x80\xae'
	result "$1" $?
}

hostile=$'x\e[2J\xc2\x9b31m\xe2\x80\xaey'
printf '[%s]\nrw=read\nunknown=1\n' "$hostile" >"$T/hostile.ini"
printf '{"%s": {"dtype": "F32", "shape": [1], "data_offsets": [0, 3]}}' "$hostile" >"$T/hostile.json"
printf '{"aio": {"%s": 1}}' "$hostile" >"$T/config.json"
printf 'release %s 4k\n' "$hostile" >"$T/hostile.txt"
obeys_nothing job_files_are_not_obeyed bench "$T/hostile.ini" --nvme-path "$T/drive"
obeys_nothing names_of_tensors_are_not_obeyed bench --model "$T/hostile.json" --nvme-path "$T/drive"
obeys_nothing keys_of_configurations_are_not_obeyed bench --config "$T/config.json"
obeys_nothing names_of_accesses_are_not_obeyed replay "$T/hostile.txt" --nvme-path "$T/drive"

# shows NAME TEXT COMMAND...: the report on standard output has TEXT, and no byte of a control or outside of UTF-8
shows() {
	"$NVSWAP" "${@:3}" >"$T/out" 2>"$T/err" && grep -qF "$2" "$T/out" &&
		! LC_ALL=C grep -q $'\e\|\x9b\|\xff\|\xe2\x80\xae' "$T/out"
	result "$1" $?
}

place="$T/$hostile" shown='x\x1b[2J\xc2\x9b31m\xe2\x80\xaey'
mkdir "$place"
printf 'swapin a 4k\nrelease a\n' >"$place/trace"
printf '{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}' >"$place/model.json"
printf '[x\xffy]\nrw=read\nbs=4k\niodepth=8\nioengine=auto\ndirect=1\nsize=64k\n' >"$T/named.ini"
bench=(bench --eta never --nvme-path)
shows paths_in_a_report_of_info_are_not_obeyed "$shown" info --nvme-path "$place"
shows paths_in_a_report_of_replay_are_not_obeyed "$shown" replay "$place/trace" --nvme-path "$T/drive"
shows paths_in_a_report_of_bench_are_not_obeyed "$shown" "${bench[@]}" "$T/drive" --model "$place/model.json"
shows descriptions_in_a_report_of_bench_are_not_obeyed "$shown" "${bench[@]}" "$T/drive" \
	"$T/named.ini" --description "$hostile"
shows names_of_jobs_in_a_report_are_text 'x\xffy' "${bench[@]}" "$T/drive" "$T/named.ini"
shows paths_in_a_forecast_are_not_obeyed "$shown" "${bench[@]}" "$place" "$T/named.ini" --dry-run
shows names_of_jobs_in_a_forecast_are_text 'x\xffy' "${bench[@]}" "$place" "$T/named.ini" --dry-run

# A file that is no job file or list of accesses may be secret.
for text in 'root:SECRET:19000::' '[SECRET' '[a] SECRET' $'[a]\nSECRET SECRET'; do
	echo "$text" >"$T/secret"
	for command in bench replay; do
		"$NVSWAP" $command "$T/secret" --nvme-path "$T/drive" >"$T/out" 2>"$T/err" && break 2
		grep -q SECRET "$T/out" "$T/err" && break 2
	done
done
grep -q SECRET "$T/out" "$T/err"
result a_file_that_is_no_job_file_is_not_quoted $((1 - $?))
exit $((failures != 0))
