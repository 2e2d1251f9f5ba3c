#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_parity.sh TESSERA WHERE COLLECTIVES RING: four ranks on two hosts train as four on one do;
# each host's two ranks share memory, and what crosses hosts are messages.
set -u
tessera=$1 where=$2 collectives=$3 ring=$4
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 200mbit
# shellcheck source=tests/nodes/config.sh
. "$nodes_here/config.sh"

# spread PROGRAM words...: as two ranks on either host, by mpirun itself.
spread() {
    on "$node_a" timeout 100 mpirun --allow-run-as-root -n 4 --host "$node_a:2,$node_b:2" \
        --bind-to none --mca pml ob1 --mca btl self,vader,tcp --mca mpi_yield_when_idle 1 "$@" \
        < /dev/null
}

spread "$where" | sort > "$scratch/where.txt"
cat > "$scratch/wanted.txt" << 'END'
rank 0: host 0 of 2, local rank 0 of 2, shard by memory, replicate by messages
rank 1: host 0 of 2, local rank 1 of 2, shard by memory, replicate by messages
rank 2: host 1 of 2, local rank 0 of 2, shard by memory, replicate by messages
rank 3: host 1 of 2, local rank 1 of 2, shard by memory, replicate by messages
END
diff "$scratch/wanted.txt" "$scratch/where.txt" || complain 'ranks are not where they should be'

# The backend's own tests, with hosts between the ranks.
spread "$collectives" memory max_keeps_nan groups_of_two || complain 'test_cpu_collectives'
spread "$ring" || complain 'test_cpu_ring'

for arch in gpt2 llama; do
    one=$scratch/$arch-one two=$scratch/$arch-two
    on "$node_a" timeout 60 "$tessera" train "$scratch/$arch.yaml" -n 4 "run.dir=$one" > "$scratch/out" 2>&1 ||
        complain "one host: $(cat "$scratch/out")"
    on "$node_a" timeout 60 "$tessera" train "$scratch/$arch.yaml" \
        --hosts "$node_a:2,$node_b:2" "run.dir=$two" > "$scratch/out" 2>&1 ||
        complain "two hosts: $(cat "$scratch/out")"
    # f32 with sums of other order: the first step within 1e-6, later ones within 1e-5, as between
    # meshes (tests/cli/test_train.sh).
    agree "$one" "$two" loss 1e-6 1e-5
    agree "$one" "$two" grad_norm 1e-5 1e-4
    # On one host nothing leaves it; of two, the bytes of the replicate axis by either rank.
    column host_sent_bytes "$one" | grep -qv '^0$' && complain 'one host sends to another'
    sed 's/.*"replicate": \([0-9]*\).*"host_sent_bytes": \([0-9]*\).*/\1 \2/' \
        "$two/metrics.jsonl" | awk '$2 < 2 * $1 || $1 == 0 { exit 1 }' ||
        complain 'host_sent_bytes is less than what the replicate axis sends'
done
# The same bits in another run.
on "$node_a" timeout 60 "$tessera" train "$scratch/llama.yaml" \
    --hosts "$node_a:2,$node_b:2" "run.dir=$scratch/again" > "$scratch/out" 2>&1
agree "$scratch/llama-two" "$scratch/again" loss 0 0
agree "$scratch/llama-two" "$scratch/again" grad_norm 0 0
finish
