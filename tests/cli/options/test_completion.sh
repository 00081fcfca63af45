#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# bash completes nvswap's commands, options, choices, files and directories, with = and : as bash
# splits words; also by pressing Tab in a terminal.
cd "$(dirname "$0")/../../.." || exit
. tests/support/command.sh
T=$(realpath "$T")
completion=$(realpath "$BUILD/nvswap.bash")
mkdir "$T/store" "$T/stone"
touch "$T/mixed swap.ini" "$T/ds_config.json"
cd "$T" || exit

# shellcheck disable=SC1090 # a generated file
. "$completion"
# compopt only works when bash itself calls the completion.
# shellcheck disable=SC2317
compopt() { :; }

# complete_words WORD...: prints the completions of the last word, one a line.
complete_words() {
	local function
	function=$(complete -p nvswap | sed -n 's/^complete -F \([^ ]*\) nvswap$/\1/p')
	COMP_WORDS=(nvswap "$@")
	COMP_CWORD=$#
	COMPREPLY=()
	"$function" nvswap "${!#}" "${COMP_WORDS[COMP_CWORD - 1]}"
	((${#COMPREPLY[@]} == 0)) || printf '%s\n' "${COMPREPLY[@]}"
}

# completes NAME EXPECTED WORD...: the completions must be exactly EXPECTED, separated by ";", in
# any order.
completes() {
	local name=$1 expected=$2
	shift 2
	diff <(tr ';' '\n' <<<"$expected" | grep . | sort) <(complete_words "$@" | sort)
	result "$name" $?
}

diff <("$NVSWAP" --help | sed -n 's/^  \([a-z-]*\)  .*/\1/p' | sort) <(complete_words '' | sort)
result commands_are_those_of_help $?
completes beginning_of_a_command_is_completed bench be
for command in $("$NVSWAP" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do
	diff <("$NVSWAP" "$command" --help | grep -oE '^  (-h, )?--[a-z-]+' | grep -o -e '--.*' | sort) \
		<(complete_words "$command" -- | sort)
	result "options_are_those_of_${command}_help" $?
done
completes choices_are_completed "randread;randwrite" bench --rw rand
completes choices_follow_an_equal_sign "randread;randwrite" bench --rw = rand
completes all_choices_follow_an_equal_sign "auto;io_uring;libaio;posix" bench --ioengine =
completes choices_are_those_of_the_command "swap;read;write" tune --objective ''
completes underscores_are_taken "normal" bench --output_format no
completes comma_lists_go_on "normal,json;normal,json+" bench --output-format normal,j
completes flags_take_their_words_after_an_equal_sign "0;1" bench --verify = ''
completes job_files_are_completed "mixed swap.ini" bench mi
completes files_are_completed "ds_config.json" bench --config ds
completes directories_alone_are_completed "store;stone" bench --nvme-path ''
completes directories_follow_a_colon "store;stone" info --directory = /a : /b : sto
completes directory_of_tune_is_completed "store;stone" tune st
completes info_takes_no_argument "" info st
completes keys_of_files_are_no_options "" bench --stone

# The same by pressing Tab in a terminal.
python3 - "$completion" <<'PY'
import os, pty, re, select, sys, time

pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(TERM="dumb", PS1="> ", INPUTRC="/dev/null", HISTFILE="")
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
seen = b""

def until(pattern):
    global seen
    deadline = time.monotonic() + 30
    while not re.search(pattern, seen):
        if not select.select([terminal], [], [], max(0, deadline - time.monotonic()))[0]:
            sys.exit(f"no {pattern} in {seen}")
        seen += os.read(terminal, 4096)
    seen = b""

os.write(terminal, b". '%s'; echo rea''dy\n" % sys.argv[1].encode())
until(rb"\nready")
for typed, pattern in ((b"nvswap be\t", rb"bench "), (b"--ioe\t", rb"ioengine "), (b"io_\t", rb"io_uring "),
                       (b"--rw=randwr\t", rb"randwrite "), (b"mix\t", rb"mixed\\ swap\.ini")):
    os.write(terminal, typed)
    until(pattern)
os.write(terminal, b"\x15exit\n")
os.waitpid(pid, 0)
PY
result tab_completes_in_a_terminal $?
[ $failures = 0 ]
