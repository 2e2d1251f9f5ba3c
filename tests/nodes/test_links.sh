#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_links.sh TESSERA: what a run measures of a capped link at its start, and when it warns. The
# link carries 2.5 MB/s, little enough for a busy machine to fill it. Two replicate groups lie beside
# each other on it: each has half, or up to all of it where the other is held up.
#
# On a busy machine one measurement in some is off: ranks stand still, and the link's bucket of 256 KB
# fills meanwhile. So figures are asked for a few times, and what is said of a figure each time.
set -u
tessera=$1
# shellcheck source=tests/nodes/nodes.sh
. "$(dirname "$0")/nodes.sh"
nodes_up 20mbit
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

# start RANKS words...: a step of hsdp, that many ranks on each host.
start() {
    ranks=$1
    shift
    rm -rf "$scratch/run"
    on "$node_a" timeout 100 "$tessera" train "$scratch/llama.yaml" \
        --hosts "$node_a:$ranks,$node_b:$ranks" "run.dir=$scratch/run" train.steps=1 "$@" \
        > "$scratch/out" 2>&1 || complain "$*: $(cat "$scratch/out")"
}
has() { grep -qE -e "$1" "$scratch/out" || complain "nothing matches $1: $(cat "$scratch/out")"; }
lacks() { ! grep -qE -e "$1" "$scratch/out" || complain "something matches $1: $(cat "$scratch/out")"; }

# find_rate: $rate, what the run has measured along replicate.
find_rate() {
    rate=$(sed -n 's/^links: replicate of 2 ranks between hosts \([0-9.]*\) GB\/s, .* a hop.*/\1/p' \
        "$scratch/out")
}

# measures FROM TO RANKS words...: one of six starts finds a rate between the two, or a fifth beyond.
measures() {
    from=$1 to=$2 tries=
    shift 2
    for try in 1 2 3 4 5 6; do
        start "$@"
        find_rate
        tries="$tries $rate"
        awk -v rate="$rate" -v from="$from" -v to="$to" \
            'BEGIN { exit !(rate >= from / 1.2 && rate <= to * 1.2) }' && return
    done
    complain "$try starts measured$tries GB/s, none of them from $from to $to: $(cat "$scratch/out")"
}

# warns DECLARED: of $rate, with the factor between the two (rate has three digits, the factor one
# behind the point).
warns() {
    factor=$(sed -n "s/^warning: axis \"replicate\" sends $rate GB\/s a rank, run.cluster says $1: a factor \([0-9.]*\);.*/\1/p" \
        "$scratch/out")
    awk -v rate="$rate" -v declared="$1" -v factor="$factor" 'BEGIN {
        ratio = rate > declared ? rate / declared : declared / rate
        error = factor > ratio ? factor - ratio : ratio - factor
        exit !(error <= 0.05 + 0.005 * ratio) }' ||
        complain "factor \"$factor\" of $rate and $1: $(cat "$scratch/out")"
}

# A pair of ranks has the link for itself. Of two pairs each rank is a block of the link, so its
# rate is a rank's; their middle is within a factor 2 of all it can be, a tenth and tenfold are not.
cluster "$scratch/right.yaml" 0.00175
cluster "$scratch/fast.yaml" 0.0175
cluster "$scratch/slow.yaml" 0.000175
measures 0.0025 0.0025 1 mesh=replicate=2
measures 0.00125 0.0025 2 run.cluster="$scratch/right.yaml"
has '; shard of 2 ranks [0-9.]* GB/s, .* a hop; measured in '
lacks 'warning: axis "replicate"'
sed -n '/^links: /p' "$scratch/out"
start 2 run.cluster="$scratch/fast.yaml"
find_rate
warns 0.0175
start 2 run.cluster="$scratch/slow.yaml"
find_rate
warns 0.000175
start 2 run.probe=false run.cluster="$scratch/fast.yaml"
lacks '^links:|warning'
start 2 run.probe=false mesh=shard=2,replicate=2
has 'warning: axis "shard" lies on 2 hosts'
start 2 run.probe=false mesh=shard=2,replicate=2 parallel.preset=fsdp
lacks 'warning'
finish
