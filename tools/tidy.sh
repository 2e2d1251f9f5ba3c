#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# tidy.sh [BUILD [FILE...]]: clang-tidy over all sources (or the files given), two at a time.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
[ $# -gt 0 ] && shift
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || {
    echo "tidy.sh: clang-tidy is not installed; run tools/install_deps.sh" >&2
    exit 1
}
if [ ! -f "$build/compile_commands.json" ]; then
    echo "tidy.sh: $build/compile_commands.json is missing; configure first" >&2
    exit 1
fi
if [ $# -eq 0 ]; then
    # Only what the build compiles: clang-tidy guesses wrongly about anything else.
    set -- $(sed -n 's/^ *"file": "\(.*\)".*$/\1/p' "$build/compile_commands.json" |
        grep "^$PWD/" | grep -v "^$PWD/build" | sort -u)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
printf '%s\n' "$@" | xargs -P 2 -n 1 "$tidy" -p "$build" --quiet > "$log" 2>/dev/null || status=1
cat "$log"
[ "$status" = 0 ] && echo "tidy: $# files, no warning"
exit "$status"
