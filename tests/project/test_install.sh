#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `make install` installs what a user needs: both libraries export the public functions and nothing
# else, every function has a manual page, and the examples build through pkg-config, dynamic
# and one static, and run. Everything is staged by DESTDIR under $BUILD. test_documents.py installs into a
# prefix without DESTDIR, and links as the README says.
# shellcheck disable=SC2317 # check() calls the functions
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build}
cc=${CC:-gcc}
read -ra sanitize <<<"${SANITIZE_FLAGS:-}"
work=$(realpath -m "$build")/installed
prefix=/opt/nvswap # a prefix that is not in use
stage=$work$prefix
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

# Independent of the make that runs this test; the compiler flags are in the environment.
staged_make() {
	mkdir -p "$work/store"
	env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory PREFIX="$prefix" \
		DESTDIR="$work" "$@" >"$work/make.log" 2>&1 ||
		{ cat "$work/make.log" && return 1; }
}

functions() {
	grep -ho '^NVS_API[^(]*(' include/nvswap/*.h | grep -o 'nvs_[a-z0-9_]*($' | tr -d '(' | sort
}

exports() { # nm's arguments
	# Of an archive, nm prints its path and a colon first. The sanitizers export symbols such as __odr_asan.
	nm --defined-only --extern-only --format=posix "$@" | awk '!/:$/ && NF > 2 && $2 != "A" { print $1 }' |
		sed 's/@.*//' | grep -v '^__\(odr_\)\?[at]san' | sort
}

exports_the_header() { diff <(functions) <(exports "$@"); }

# The staged .pc file with the stage before its paths. The paths are relative because pkg-config's
# flags cannot contain spaces, and the path of this tree can.
pc() {
	local root
	root=$(realpath --relative-to=. "$stage")
	PKG_CONFIG_PATH=$stage/lib/pkgconfig pkg-config --define-variable=prefix="$root" \
		--define-variable=libdir="$root/lib" \
		--define-variable=includedir="$root/include" "$@" nvswap
}

build_dynamic() {
	local flags example
	read -ra flags < <(pc --cflags --libs)
	for example in examples/*.c; do
		"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -O2 "${sanitize[@]}" \
			-o "$work/$(basename "$example" .c)" "$example" "${flags[@]}" || return
	done
}

build_static() {
	local flags
	read -ra flags < <(pc --cflags --static --libs | sed s/-lnvswap/-l:libnvswap.a/)
	"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -O2 "${sanitize[@]}" \
		-o "$work/train_loop_static" examples/train_loop.c "${flags[@]}" &&
		! readelf -d "$work/train_loop_static" | grep libnvswap
}

run_example() {
	LD_LIBRARY_PATH=$stage/lib "$work/$1" "$work/store" && [ -z "$(find "$work/store" -type f)" ]
}

run_weights() {
	local header='{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}'
	printf "\\x$(printf %x ${#header})\\0\\0\\0\\0\\0\\0\\0%s\\1\\2\\3" "$header" >"$work/model.safetensors"
	LD_LIBRARY_PATH=$stage/lib "$work/read_weights" "$work/model.safetensors" | grep -q "^a .* 3 bytes, sum 6$"
}

has_soname() {
	local version
	version=$(pc --modversion) &&
		readelf -d "$stage/lib/libnvswap.so" | grep -q "SONAME.*\[libnvswap.so.${version%%.*}\]" &&
		[ "$(readlink -f "$stage/lib/libnvswap.so")" = "$stage/lib/libnvswap.so.$version" ] &&
		grep -q "define NVS_VERSION[[:space:]]*\"$version\"" "$stage/include/nvswap/version.h"
}

pages_are_there() {
	local page
	for page in man1/nvswap.1 man3/libnvswap.3 $(functions | sed 's|.*|man3/&.3|'); do
		[ -s "$stage/share/man/$page" ] || { echo "no $page"; return 1; }
	done
}

# The installed page is the generated one, and the completion registers with bash.
page_and_completion_are_those_built() {
	cmp "$build/nvswap.1" "$stage/share/man/man1/nvswap.1" &&
		! grep -q '^@' "$stage/share/man/man1/nvswap.1" &&
		bash -c '. "$1" && complete -p nvswap' - \
			"$stage/share/bash-completion/completions/nvswap"
}

uninstalled() { staged_make uninstall && [ -z "$(find "$stage" ! -type d)" ]; }

rm -rf "$work"
check install_into_destdir staged_make install
check shared_library_exports_the_header exports_the_header -D "$stage/lib/libnvswap.so"
check archive_exports_the_header exports_the_header "$stage/lib/libnvswap.a"
check soname_and_version_are_the_headers has_soname
check manual_pages_are_installed pages_are_there
check page_and_completion_are_those_built page_and_completion_are_those_built
check examples_build_dynamic build_dynamic
for example in train_loop train_step read_requests; do
	check "${example}_runs_dynamic" run_example "$example"
done
check read_weights_runs_dynamic run_weights
check example_builds_static build_static
check example_runs_static run_example train_loop_static
check uninstall_leaves_nothing uninstalled
exit $status
