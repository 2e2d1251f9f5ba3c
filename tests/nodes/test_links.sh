#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_links.sh TESSERA: what a run measures of a capped link at its start, and when it warns. The
# link carries 25 MB/s; two replicate groups lie beside each other on it and have half each.
set -u
tessera=$1
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 200mbit
# shellcheck source=tests/nodes/config.sh
. "$nodes_here/config.sh"

# cluster FILE NETWORK: a machine whose network carries that many GB/s; memory is left out of it.
cluster() {
    cat > "$1" << END
name: declared
target: cpu
device: {gb_per_s: 5, tflops: {f32: 0.05, bf16: 0.05}}
links:
  - {name: network, ranks: all, gb_per_s: $2}
END
}

# start words...: a step of hsdp.
start() {
    rm -rf "$scratch/run"
    on "$node_a" timeout 100 "$tessera" train "$scratch/llama.yaml" --hosts "$node_a:2,$node_b:2" \
        "run.dir=$scratch/run" train.steps=1 "$@" > "$scratch/out" 2>&1 ||
        complain "$*: $(cat "$scratch/out")"
}
has() { grep -qE -e "$1" "$scratch/out" || complain "nothing matches $1: $(cat "$scratch/out")"; }
lacks() { ! grep -qE -e "$1" "$scratch/out" || complain "something matches $1: $(cat "$scratch/out")"; }

# Every rank is a block of the one link here, so its rate is a rank's: half of the network's.
cluster "$scratch/right.yaml" 0.0125
cluster "$scratch/fast.yaml" 0.05
cluster "$scratch/slow.yaml" 0.003125
start run.cluster="$scratch/right.yaml"
has '^links: replicate of 2 ranks between hosts 0.01[0-9]* GB/s, .* a hop; shard of 2 ranks '
lacks 'warning: axis "replicate"'
sed -n '/^links: /p' "$scratch/out"
start run.cluster="$scratch/fast.yaml"
has 'warning: axis "replicate" sends 0.01[0-9]* GB/s a rank, run.cluster says 0.05: a factor [3-5]'
start run.cluster="$scratch/slow.yaml"
has 'warning: axis "replicate" sends 0.01[0-9]* GB/s a rank, run.cluster says 0.0031[0-9]*: a factor [3-5]'
start run.probe=false run.cluster="$scratch/fast.yaml"
lacks '^links:|warning'
start run.probe=false mesh=shard=2,replicate=2
has 'warning: axis "shard" lies on 2 hosts'
start run.probe=false mesh=shard=2,replicate=2 parallel.preset=fsdp
lacks 'warning'
finish
