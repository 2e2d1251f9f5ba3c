#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_bytes.sh TESSERA: the bytes that Tessera counts as leaving a host (host_sent_bytes) are those
# that its interface counts, within 5 %.
#
# What the interface counts besides: headers of Ethernet, IP and TCP, 66 bytes per packet, and the
# acknowledgements of what the other host sends. Packets between namespaces are as large as the
# sender makes them (up to 64 KiB), so that is 0.1 to 0.5 % here; on Ethernet's 1500 bytes it would
# be 66 / 1448 = 4.6 %. And messages of MPI (64 bytes each), scalars, and the start of the job.
set -u
tessera=$1
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 400mbit
# shellcheck source=tests/nodes/config.sh
. "$nodes_here/config.sh"

# compare NAME words...: one run; what either host's interface sent against the sum over its rows.
compare() {
    name=$1
    shift
    a=$(sent "$node_a") b=$(sent "$node_b")
    on "$node_a" timeout 100 "$tessera" train "$scratch/llama.yaml" --hosts "$node_a:2,$node_b:2" \
        "run.dir=$scratch/$name" run.probe=false model.dim=256 model.ffn=768 model.layers=3 train.steps=6 \
        "$@" > "$scratch/out" 2>&1 || complain "$name: $(cat "$scratch/out")"
    a=$(($(sent "$node_a") - a)) b=$(($(sent "$node_b") - b))
    column host_sent_bytes "$scratch/$name" | awk -v a=$a -v b=$b -v name="$name" '
        { counted += $1 }
        END { printf "%s: counted %.1f MB, sent %.2f %% more and %.2f %% more\n", name,
                     counted / 1e6, 100 * (a / counted - 1), 100 * (b / counted - 1)
              bad = counted < 2e7 || a < counted || b < counted
              exit bad || a > 1.05 * counted || b > 1.05 * counted }' || complain "$name"
}

compare hsdp
compare fsdp parallel.preset=fsdp mesh=shard=4
compare ddp parallel.preset=ddp mesh=replicate=4 train.micro_batches=1
finish
