#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_faults.sh TESSERA: a rank that is killed or stopped on the other host, a link that goes down, and messages
# that take the wrong interface from the start, end the job with a failure in seconds, and leave no
# process on either host.
set -u
tessera=$1
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 200mbit
# shellcheck source=tests/nodes/config.sh
. "$nodes_here/config.sh"

# begin NAME TIMEOUT: train until told otherwise; returns when steps are under way.
begin() {
    on "$node_a" timeout 100 "$tessera" train "$scratch/llama.yaml" train.steps=100000 \
        --hosts "$node_a:2,$node_b:2" "run.dir=$scratch/$1" "run.timeout_s=$2" \
        > "$scratch/out" 2> "$scratch/err" &
    runner=$!
    tries=0
    until [ -s "$scratch/$1/metrics.jsonl" ] || [ $tries -ge 200 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ $tries -lt 200 ] || complain "$1: training has not begun: $(cat "$scratch/out" "$scratch/err")"
}

# ended NAME SECONDS PATTERN: with a failure, within that time, saying why, and completely.
ended() {
    before=$(date +%s)
    wait $runner
    status=$?
    took=$(($(date +%s) - before))
    echo "$1: status $status after $took s: $(grep -E -m 1 "$3" "$scratch/err")"
    if [ $status = 0 ] || [ $status = 124 ]; then
        complain "$1: status $status, wants a failure"
    fi
    [ $took -le "$2" ] || complain "$1: took $took s, wants at most $2"
    grep -Eq "$3" "$scratch/err" || complain "$1: nobody says why: $(cat "$scratch/err")"
    tries=0
    while [ -n "$(nodes_pids)" ] && [ $tries -lt 150 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    for pid in $(nodes_pids); do
        complain "$1: left behind: $(tr '\0' ' ' < "/proc/$pid/cmdline")"
    done
}

# One of the ranks on the other host.
victim() {
    ip netns pids "$node_b" | while read -r pid; do
        [ "$(cat "/proc/$pid/comm")" = "$(basename "$tessera" | cut -c 1-15)" ] && echo "$pid"
    done | tail -n 1
}

begin killed 600
kill -9 "$(victim)" || complain 'no rank to kill on the other host'
ended killed 10 "^tessera: rank [23] on host $node_b was killed by signal 9"

begin stopped 5
kill -STOP "$(victim)" || complain 'no rank to stop on the other host'
ended stopped 25 'rank\(s\) [0-9, ]*[23] did not (arrive at|finish) '

begin cut 600
ip -n "$node_switch" link set dev portb down
# 3 s without traffic, then 2 probes in 2 s each.
ended cut 20 '^tessera: host .* no longer answers .*the job was ended'
ip -n "$node_switch" link set dev portb up

OMPI_MCA_btl_tcp_if_include=lo on "$node_a" timeout 100 "$tessera" train "$scratch/llama.yaml" \
    run.timeout_s=5 --hosts "$node_a:2,$node_b:2" "run.dir=$scratch/lost" > "$scratch/out" \
    2> "$scratch/err" &
runner=$!
ended lost 15 'rank [0-3]/4. ERR_COMM: waited 5 s for the other ranks in the start of MPI'
finish
