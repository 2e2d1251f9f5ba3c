#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_compare.sh PROGRAM: tessera compare as a user calls it, with the least work it can do: what is
# printed, and that counts and memory are as planned. Times are looked at by tests/nodes.
set -u
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
tiny='model.arch=llama model.layers=2 model.dim=32 model.heads=4 model.kv_heads=2 model.ffn=48
    model.vocab=64 train.batch=8 train.seq=16 parallel.param_dtype=f32 run.threads=1'

# start STATUS words...
start() {
    case_name="$*"
    wanted=$1
    shift
    timeout -k 5 120 "$program" compare "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    [ $got = "$wanted" ] || complain "exit status $got, wants $wanted"
}

complain() {
    echo "FAIL [$case_name]: $1"
    sed 's/^/    out| /' "$folder/out"
    sed 's/^/    err| /' "$folder/err"
    failed=$((failed + 1))
}

# has FILE REGEX; lacks FILE REGEX
has() { grep -qE -e "$2" "$folder/$1" || complain "no line of $1 matches $2"; }
lacks() { ! grep -qE -e "$2" "$folder/$1" || complain "a line of $1 matches $2"; }
# before REGEX REGEX: the first matches on an earlier line of out
before() {
    a=$(grep -nE -e "$1" "$folder/out" | head -n 1 | cut -d : -f 1)
    b=$(grep -nE -e "$2" "$folder/out" | head -n 1 | cut -d : -f 1)
    [ "${a:-9999}" -lt "${b:-0}" ] || complain "$1 does not stand before $2"
}

# shellcheck disable=SC2086
start 0 $tiny -n 4 mesh=replicate=2,shard=2 train.micro_batches=2 --steps 2 --seconds 0.4 \
    --out "$folder/here.yaml"
has out '^llama, [0-9]+ parameters, mesh replicate=2,shard=2; 4 ranks of 1 thread on 1 host$'
has out '^a step: 8 x 16 tokens, in 2 micro-batches; medians of 2 steps$'
has out '^machine [0-9a-f]{16}, measured before any step: matmul [0-9.e+]+ GFLOP/s a rank; host '
before '^machine ' '^preset '
for preset in ddp fsdp hsdp hfsdp; do
    has out "^$preset  .* s .*%"
    has err "^$preset: [0-9.]+ s a step, planned [0-9.]+ s$"
done
has out '^planned order: .*; measured order: '
has out '^on the machine as it was at the end, plans differ by a factor [0-9.]+ at most$'
has here.yaml '^kernels: .*matmul: [0-9]'
hash=$(sed -n 's/^machine \([0-9a-f]*\),.*/\1/p' "$folder/out")

# The file that was written is the machine that was used.
# shellcheck disable=SC2086
start 0 $tiny -n 2 --presets zero1,ddp --steps 1 --cluster "$folder/here.yaml" --markdown
has out "^machine $hash, given before any step"
has out '^\| preset *\| memory, planned'
has out '^\|---\|---:'
has out '^\| zero1 '
lacks out 'at the end'

# Memory is as planned, and so is what ranks send.
# shellcheck disable=SC2086
start 0 $tiny -n 2 mesh=shard=2 --presets all --steps 1 --seconds 0.2 --json
has out '"cluster_hash": "[0-9a-f]{16}"'
has out '"apart_at_the_end": [1-9]'
awk '/"memory_bytes"/ { memory[++m] = $2 }
     /"planned": [0-9]/ { planned = $2 + 0 }
     /"counted": [0-9]/ { n++; if ($2 + 0 != planned || planned <= 0) bad = 1 }
     END { for (i = 1; i < m; i += 2) if (memory[i] != memory[i + 1]) bad = 1
           exit bad || m != 12 || n < 6 }' "$folder/out" || complain 'planned and counted differ'

# What a preset cannot do is a row, and the others have their turn.
start 0 model.arch=llama model.layers=400 model.dim=8192 model.heads=64 model.ffn=28672 \
    model.vocab=64 train.batch=2 train.seq=16 parallel.param_dtype=f32 -n 2 --presets ddp,fsdp \
    --cluster "$folder/here.yaml"
has out '^ddp +did not run'
has out '^fsdp did not run: 2 ranks with .* this machine has'

# shellcheck disable=SC2086
start 2 $tiny --presets ddp,hsdq
has err 'preset "hsdq": wants one of .*; the nearest is hsdp'
# shellcheck disable=SC2086
start 2 $tiny --steps 1.5
has err '--steps 1.5: wants a whole number'
# shellcheck disable=SC2086
start 2 $tiny --cluster nowhere.yaml
has err 'nowhere.yaml'
# shellcheck disable=SC2086
start 2 $tiny --cluster 8xH100 --seconds 3
has err '--cluster gives the machine'
start 2
start 0 --help
has out '^  tessera compare run.yaml -n 4'

[ $failed = 0 ] && echo "compare: all cases passed"
[ $failed = 0 ]
