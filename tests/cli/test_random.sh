#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_random.sh PROGRAM GOLDEN FIRST LAST: layouts drawn from the seeds FIRST..LAST, the golden
# training cases in turn; each run prints what it drew, so a failure is one command to repeat.
set -u
program=$1
golden=$2
seed=$3
last=$4
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

while [ "$seed" -le "$last" ]; do
    case $((seed % 3)) in
    0) name=gpt2-tiny ;;
    1) name=llama-accum3 ;;
    *) name=llama-tied ;;
    esac
    if timeout -k 5 300 "$program" verify "$golden/train/$name" --random "$seed" >"$log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name --random $seed"
        sed 's/^/    /' "$log"
    fi
    seed=$((seed + 1))
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
