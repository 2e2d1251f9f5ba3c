#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# kill_rank.sh COMMAND...: run a job (mpiexec -n N test_cpu_faults) whose last rank kills itself while
# the others wait for it in a collective. Every other rank must name it within seconds, and the job
# must end with a failure, leaving no process of its own behind.
set -eu
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begin=$(date +%s)
status=0
TSR_TEST_KILL=1 timeout 30 "$@" killed > "$log" 2>&1 || status=$?
took=$(($(date +%s) - begin))
cat "$log"
if [ "$status" -eq 0 ] || [ "$status" -eq 124 ]; then
    echo "kill_rank.sh: the job ended with status $status after $took s, wanted its failure" >&2
    exit 1
fi
if ! grep -Eq 'survivor: ERR_REMOTE after [0-4]\.[0-9] s: rank [0-9]+ ended before it came to all_reduce #2 of "layers.1" over "shard"' "$log"; then
    echo "kill_rank.sh: no survivor named the rank that was killed" >&2
    exit 1
fi
if grep -q 'survivor: OK' "$log"; then
    echo "kill_rank.sh: a survivor did not notice" >&2
    exit 1
fi
