#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# expect_failure.sh PATTERN COMMAND...: the command must exit nonzero and print a line that matches.
pattern=$1
shift
output=$("$@" 2>&1) && {
    printf '%s\n' "$output"
    echo "expected a failure, but the exit status is 0"
    exit 1
}
printf '%s\n' "$output" | grep -Eq -- "$pattern" && exit 0
printf '%s\n' "$output"
echo "failed as expected, but no line matches: $pattern"
exit 1
