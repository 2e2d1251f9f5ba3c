# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
# shellcheck shell=sh
#
# Sourced by tests that call the program as a user does. They set program, and command where all
# calls begin with the same one; then start ... and has ..., and in the end finish.
set -u
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
passed=0
failed=0
command=${command:-}

# start STATUS words...: the program's output goes to the files out and err of folder.
start() {
    case_name="$*"
    wanted=$1
    shift
    # shellcheck disable=SC2086
    timeout -k 5 120 "$program" $command "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    [ $got = "$wanted" ] || complain "exit status $got, wants $wanted"
    passed=$((passed + 1))
}

complain() {
    echo "FAIL [$case_name]: $1"
    sed 's/^/    out| /' "$folder/out"
    sed 's/^/    err| /' "$folder/err"
    failed=$((failed + 1))
}

# has FILE REGEX; lacks FILE REGEX; empty FILE
has() { grep -qE -e "$2" "$folder/$1" || complain "no line of $1 matches $2"; }
lacks() { ! grep -qE -e "$2" "$folder/$1" || complain "a line of $1 matches $2"; }
empty() { [ ! -s "$folder/$1" ] || complain "$1 is not empty"; }

finish() {
    echo "$passed calls, $failed failed"
    [ $failed = 0 ]
}
