#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# nvswap info: its output in both formats, its destination, and its exit status.
set -uo pipefail
cd "$(dirname "$0")/../../.." || exit
. tests/support/command.sh

info() { ends "$1" "$2" info "${@:3}"; }

info text_describes_machine_engines_and_path 0 --nvme-path "$T" &&
	has out "  cpus     " "io_uring" "libaio" "posix" "    works                    yes" \
		"$T" "  filesystem    " "  direct     " "advice"
info without_a_path_text_describes_the_machine 0 && has out "memory  " "advice"
info several_paths_are_described_in_order 0 --nvme-path "$T" --nvme-path . \
	--output-format json && json "
		assert [path['path'] for path in paths] == ['$T', '.']
		assert len(set(report['advice'])) == len(report['advice'])"
info json_has_its_stable_names 0 --nvme-path . --output-format json && json '
		assert report["nvswap version"]
		assert set(report["ioengines"]) == {"auto", "io_uring", "libaio", "posix"}
		auto = report["ioengines"]["auto"]
		assert auto["works"] and report["ioengines"][auto["ioengine"]]["works"]
		for engine in report["ioengines"].values():
			assert engine["works"] or engine["reason"]
		for key in ("kernel", "cpus", "numa_nodes", "memory_bytes", "memlock_bytes",
			    "memory_limit_bytes", "memory_limit_file", "memory_free_bytes",
			    "hugepage_bytes", "hugepages_total", "hugepages_free",
			    "transparent_hugepages", "aio_nr", "aio_max_nr", "io_uring_disabled"):
			assert key in machine, key
		for key in ("filesystem", "block_device", "direct", "dio_mem_align",
			    "dio_offset_align", "dio_from_statx", "free_bytes", "total_bytes",
			    "device", "model", "scheduler", "rotational", "logical_block_bytes",
			    "physical_block_bytes", "max_io_bytes", "max_hw_io_bytes",
			    "nr_requests", "max_segments", "numa_node", "reserve_fails", "drives"):
			assert key in paths[0], key
		assert all(isinstance(line, str) for line in report["advice"])'
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ]; then
	info a_path_in_memory_has_no_direct_io_and_no_drive 0 --nvme-path /dev/shm &&
		has out "  direct                     no" "  drives none"
else
	echo "skip a_path_in_memory_has_no_direct_io_and_no_drive: /dev/shm is not a writable tmpfs"
fi
info a_missing_path_fails_with_the_way_to_make_it 1 --nvme-path "$T/a/b" &&
	has err "$T/a/b does not exist" "mkdir -p '$T/a/b'"
info a_path_that_fails_leaves_the_report_of_the_others 1 --nvme-path "$T/a" --nvme-path . \
	--output-format json && json '
		assert "does not exist" in paths[0]["error"]
		assert paths[1]["total_bytes"] > 0 and "error" not in paths[1]'
mkdir "$T/"$'\xff\xc3'
info a_path_that_is_no_utf8_leaves_valid_json 0 --nvme-path "$T/"$'\xff\xc3' \
	--output-format json && json 'assert paths[0]["path"].endswith("/??")'

info a_drive_has_its_smart_log_or_the_reason_why_not 0 --nvme-path . --tbw 600 --daily-writes 1t \
	--output-format json && json '
		for drive in paths[0]["drives"]:
			assert drive["device"] in paths[0]["device"].split(",")
			assert ("smart_error" in drive) == (drive["percentage_used"] is None)
			assert drive["job_bytes_per_day"] == (1 << 40) / len(paths[0]["drives"])
			assert "smart_error" in drive or drive["endurance_bytes"] == 600e12'
"$NVSWAP" bench --rw swap --tensors 2 --tensor-size 64k --nvme-path "$T" --output-format json \
	--output "$T/result.json" 2>/dev/null
info the_rate_of_a_job_is_that_of_its_result 0 --nvme-path . --result "$T/result.json" --output-format json &&
	json '
		rate = json.load(open("'"$T"'/result.json"))["jobs"][0]["write"]["bw_bytes"]
		for drive in paths[0]["drives"]:
			per_day = drive["job_bytes_per_day"] * len(paths[0]["drives"])
			assert abs(per_day / (rate * 86400) - 1) < 1e-9'
info a_result_that_is_none_is_bad_usage 2 --result "$T/none.json" && has err "$T/none.json can't be read"
info a_result_and_a_rate_exclude_each_other 2 --result "$T/result.json" --daily-writes 1t &&
	has err "--result" "--daily-writes"

info output_is_written_completely_to_a_file 0 --output "$T/file" --output-format json &&
	mv "$T/file" "$T/out" && json 'assert not paths'
info help_names_every_option 0 --help &&
	has out "--nvme-path" "--output-format" "--output FILE" "Exit status"
info an_argument_that_is_no_option_is_bad_usage 2 . && has err "takes no arguments"

[ $failures = 0 ]
