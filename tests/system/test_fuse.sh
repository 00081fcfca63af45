#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Stores on FUSE, which gives a removed file that is still open another name in its directory, as NFS does: a
# run leaves nothing, and folders without a store can be removed.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
. tests/support/command.sh

MOUNT=$(realpath "$T")/mount
unmount() {
	! mountpoint -q "$MOUNT" || umount "$MOUNT" 2>/dev/null || fusermount3 -u "$MOUNT" 2>/dev/null || umount -l "$MOUNT"
	rm -rf "$T"
}
trap unmount EXIT

mkdir "$T/below" "$MOUNT"
# Another user reaches it by this file system alone.
chmod 1777 "$T/below"

python3 - "$T/model.safetensors" <<'END'
import json, struct, sys
text = json.dumps({"a": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + bytes(4000))
END

# FUSE learns a moment after a process has ended that its files are closed.
empty() {
	for _ in {1..100}; do
		[ -n "$(ls -A "$T/below")" ] || return 0
		sleep 0.05
	done
	return 1
}

options=()
[ "$(id -u)" != 0 ] || options=(-o allow_other)
names="a_run_on_fuse_leaves_nothing a_kept_store_on_fuse_is_reopened_and_removed
another_user_can_run_after_a_run_on_fuse a_store_is_opened_beside_removed_files_that_are_open"
if ! command -v bindfs >/dev/null || [ ! -w /dev/fuse ] || ! bindfs "${options[@]}" "$T/below" "$MOUNT" 2>"$T/err"; then
	for name in $names; do
		echo "skip $name: bindfs can't mount here $(head -n 1 "$T/err" 2>/dev/null)"
	done
else
	small=(--tensors 4 --tensor-size 1m --pool 4m)
	failed=
	for mode in swap params "step --pool 16m" randwrite; do
		# shellcheck disable=SC2086
		"$NVSWAP" bench --nvme-path "$MOUNT" --size 4m --rw $mode >"$T/out" 2>"$T/err" || failed="$failed; $mode"
		empty || failed="$failed; $mode leaves $(cd "$T/below" && find . | tr '\n' ' ')"
	done
	"$NVSWAP" bench --nvme-path "$MOUNT" "${small[@]}" --numjobs 4 >"$T/out" 2>"$T/err" || failed="$failed; numjobs"
	[ -z "$failed" ] && empty
	result a_run_on_fuse_leaves_nothing $? "$failed"

	"$NVSWAP" store import --from "$T/model.safetensors" "$MOUNT" >"$T/out" 2>"$T/err" &&
		"$NVSWAP" store verify "$MOUNT" >"$T/out" 2>>"$T/err" &&
		[ -e "$T/below/nvswap/rank0/data" ] &&
		"$NVSWAP" store remove "$MOUNT" >"$T/out" 2>>"$T/err" && empty
	result a_kept_store_on_fuse_is_reopened_and_removed $? "$(find "$T/below")"

	# A reader of a store that was removed holds its files.
	mkdir -p "$MOUNT/nvswap/rank0"
	exec 8>"$MOUNT/nvswap/rank0/data" 9>"$MOUNT/nvswap/rank0/manifest.0"
	rm "$MOUNT/nvswap/rank0/data" "$MOUNT/nvswap/rank0/manifest.0"
	[ "$(find "$T/below" -name '.fuse_hidden*' | wc -l)" = 2 ] &&
		"$NVSWAP" bench --nvme-path "$MOUNT" "${small[@]}" >"$T/out" 2>"$T/err" &&
		"$NVSWAP" store import --from "$T/model.safetensors" "$MOUNT" >"$T/out" 2>>"$T/err" &&
		"$NVSWAP" store verify "$MOUNT" >"$T/out" 2>>"$T/err" &&
		"$NVSWAP" store export --to "$T/out.pt" "$MOUNT" >"$T/out" 2>>"$T/err" &&
		"$NVSWAP" store remove "$MOUNT" >"$T/out" 2>>"$T/err"
	status=$?
	exec 8>&- 9>&-
	[ $status = 0 ] && "$NVSWAP" bench --nvme-path "$MOUNT" "${small[@]}" >"$T/out" 2>"$T/err" &&
		empty
	result a_store_is_opened_beside_removed_files_that_are_open $? "$(find "$T/below")"

	if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
		cp "$NVSWAP" "$T/below/nvswap-command" && chmod 755 "$T/below/nvswap-command"
		# The tree may lie below a folder of root alone.
		(cd "$MOUNT" && setpriv --reuid=65534 --regid=65534 --clear-groups ./nvswap-command bench --nvme-path . \
			"${small[@]}") >"$T/out" 2>"$T/err" &&
			"$NVSWAP" bench --nvme-path "$MOUNT" "${small[@]}" >"$T/out" 2>>"$T/err" &&
			[ "$(ls -A "$T/below")" = nvswap-command ]
		result another_user_can_run_after_a_run_on_fuse $? "$(find "$T/below" -ls)"
	else
		echo "skip another_user_can_run_after_a_run_on_fuse: it needs root and setpriv"
	fi
fi

# What a run that was killed, or an earlier nvswap, has left.
mkdir -p "$T/left/nvswap/rank0"
"$NVSWAP" store remove "$T/left" >"$T/out" 2>"$T/err" && [ -z "$(ls -A "$T/left")" ]
result folders_without_a_store_are_removed $?
mkdir "$T/left/nvswap"
"$NVSWAP" store remove "$T/left" >"$T/out" 2>"$T/err" && grep -q "removed  *empty folders" "$T/out" &&
	[ -z "$(ls -A "$T/left")" ]
result a_folder_of_no_store_is_removed $?
mkdir -p "$T/left/nvswap/rank0" "$T/left/nvswap/rank3"
"$NVSWAP" store remove --rank 3 "$T/left" >"$T/out" 2>"$T/err" && [ -d "$T/left/nvswap/rank0" ] &&
	[ ! -e "$T/left/nvswap/rank3" ]
result folders_of_another_rank_stay $?
touch "$T/left/nvswap/rank0/mine"
"$NVSWAP" store remove "$T/left" >"$T/out" 2>"$T/err"
[ $? = 1 ] && [ -e "$T/left/nvswap/rank0/mine" ]
result a_folder_with_a_file_of_another_program_stays $?
# A client of NFS, or a FUSE file system, that crashed.
failed=
for name in .nfs00000000deadbeef00000001 .fuse_hidden0000000100000001; do
	mkdir -p "$T/crashed/nvswap/rank0"
	touch "$T/crashed/nvswap/rank0/$name"
	"$NVSWAP" store import --from "$T/model.safetensors" "$T/crashed" >"$T/out" 2>"$T/err" &&
		"$NVSWAP" store verify "$T/crashed" >"$T/out" 2>>"$T/err" &&
		"$NVSWAP" store remove "$T/crashed" >"$T/out" 2>>"$T/err" || failed="$failed; $name: $(cat "$T/err")"
	rm -r "$T/crashed"
done
[ -z "$failed" ]
result what_a_crash_has_left_of_removed_files_is_no_reason_to_refuse $? "$failed"
[ $failures = 0 ]
