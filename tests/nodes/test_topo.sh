#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_topo.sh TESSERA: two hosts describe themselves to each other, and a mesh is chosen from them.
set -u
tessera=$1
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 200mbit
# shellcheck source=tests/nodes/config.sh
. "$nodes_here/config.sh"

# has REGEX: a line of the last output matches.
has() { grep -qE -e "$1" "$scratch/out" || complain "no line matches $1: $(cat "$scratch/out")"; }

# start STATUS words...: the program on the first host.
start() {
    wanted=$1
    shift
    on "$node_a" timeout 60 "$tessera" "$@" > "$scratch/out" 2>&1
    got=$?
    [ $got = "$wanted" ] || complain "$*: exit status $got, wants $wanted"
}

start 0 topo --hosts "$node_a:2,$node_b:2"
has "^host 0: $node_a, ranks 0 to 1\$"
has "^host 1: $node_b, ranks 2 to 3\$"
has '^mesh replicate=2,shard=2 on 2 hosts of 2 ranks'
has '^  replicate=2 +2  0,2 '
start 0 topo --hosts "$node_a:2,$node_b:2" --shard 2
has '^mesh shard=4 on 2 hosts of 2 ranks'
start 1 topo --hosts "$node_a:2,$node_b:1"
has "host $node_b has 1 rank, expected 2 as host $node_a"

# The same mesh for training, whoever numbers the ranks; unequal hosts want one by hand.
sed '/^mesh:/d' "$scratch/llama.yaml" > "$scratch/auto.yaml"
start 0 train "$scratch/auto.yaml" --hosts "$node_a:2,$node_b:2" run.dir="$scratch/run" train.steps=1
has 'on mesh replicate=2 shard=2,'
has '^mesh auto: replicate over the 2 hosts, shard over the 2 ranks of each'
start 2 train "$scratch/auto.yaml" --hosts "$node_a:3,$node_b:1" run.dir="$scratch/run" train.steps=1
has 'mesh auto wants hosts with equal numbers of ranks'
start 0 train "$scratch/auto.yaml" --hosts "$node_a:3,$node_b:1" run.dir="$scratch/run" train.steps=1 \
    mesh=shard=4
has 'on mesh shard=4,'

# dealt NAME HOW words...: 4 ranks, dealt out over the hosts as mpirun's --map-by HOW.
dealt() {
    name=$1 how=$2
    shift 2
    on "$node_a" timeout 60 mpirun --allow-run-as-root -n 4 --host "$node_a:2,$node_b:2" --map-by "$how" "$tessera" train \
        "$scratch/llama.yaml" "run.dir=$scratch/$name" train.steps=3 "$@" > "$scratch/out" 2>&1 ||
        complain "$name: $(cat "$scratch/out")"
    column host_sent_bytes "$scratch/$name" > "$scratch/$name.bytes"
    column loss "$scratch/$name" > "$scratch/$name.loss"
}
dealt slot slot
! grep -q '^ranks: numbered' "$scratch/out" || complain "renumbered: $(cat "$scratch/out")"
dealt node node
has '^ranks: numbered host by host'
[ -s "$scratch/slot.bytes" ] || complain "no bytes: $(cat "$scratch/out")"
cmp "$scratch/slot.bytes" "$scratch/node.bytes" || complain "bytes differ by the launcher's numbers"
cmp "$scratch/slot.loss" "$scratch/node.loss" || complain "losses differ by the launcher's numbers"
dealt kept node run.rank_order=launcher
! cmp -s "$scratch/slot.bytes" "$scratch/kept.bytes" || complain "the launcher's numbers are not kept"
finish
