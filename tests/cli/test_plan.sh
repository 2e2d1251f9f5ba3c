#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_plan.sh PROGRAM: tessera plan as a user calls it.
program=$1
command=plan
. "$(dirname "$0")/harness.sh"

# One preset in full.
start 0 model.preset=llama3-8b train.batch=16 train.seq=4096 --ranks 16
has out '^model    llama, 8\.03 billion parameters; bf16, gradients reduced in f32$'
has out '^cluster  8xH100: 16 devices on 2 nodes of 8; file hash [0-9a-f]{16}; the default, --cluster names another$'
has out '^mesh     replicate=2 shard=8$'
has out '^times    assumed, not measured: .*no backend for its devices runs yet; "to" spans its slow and fast ends$'
has out '^== hsdp$'
has out '^  parameter slots +[1-9][0-9]*\.[0-9]+ GiB'
has out '^  headroom +3\.000 GiB '
has out '^  device +79\.600 GiB  it fits$'
has out '^  shard +8 nvlink +[1-9]'
has out '^  replicate +2 nic +[1-9]'
has out '^  step +[0-9.]+ s  [0-9.]+ to [0-9.]+$'
has out '^  MFU +[1-9][0-9.]* %  [1-9][0-9.]+ to [1-9][0-9.]+ +6 N \+ 6 L h s a token'

# All presets: a table, a verdict, the ledger of states.
start 0 model.preset=llama3-8b train.batch=16 train.seq=4096 --ranks 16 --presets all --cluster 8xH200
for preset in ddp zero1 zero2 fsdp hsdp hfsdp; do
    has out "^  $preset +[0-9]+\.[0-9]+ (yes|no|tight) "
done
has out '^(zero2|fsdp|hsdp|hfsdp) comes first: [0-9.]+ s a step \([0-9.]+ to [0-9.]+\), '
has out '^  a tie: [1-9] others? .* within 5 %, which no plan can tell apart; (zero2|fsdp|hsdp|hfsdp) needs the least memory$'
has out '^  (zero1|hsdp|hfsdp) is equal \([-+][0-9.]+ %\), with [0-9.]+ GiB instead of [0-9.]+$'
has out '^  ddp +16\.06 +32\.12 +96\.36 +144\.5[0-9]'
has out '^  fsdp +1\.00 +2\.01 +6\.02 +9\.03'

# A small device: nothing fits, it says what to do, and the status tells.
start 1 model.preset=llama-20b train.batch=4 train.seq=2048 --cluster 4xA100-40 --presets ddp,fsdp
has out '^  ddp .* no '
has out '^nothing fits: '
start 1 model.preset=llama-20b train.batch=4 train.seq=2048 --cluster 4xA100-40 --search
has out '^  none: '
start 1 model.preset=llama3-8b train.batch=1 train.seq=256 --ranks 1
has out '^  device +79\.600 GiB  it does not fit$'
# Headroom is nobody's: what needs more than memory less headroom does not fit.
start 0 model.preset=llama-tiny train.batch=1 train.seq=256 --ranks 1
cluster() { # MEMORY HEADROOM: a file of a machine of its own
    printf 'name: own\ntarget: cuda\ndevice: {memory_gib: %s, headroom_gib: %s, gb_per_s: 1000,' "$1" "$2"
    printf ' tflops: {f32: 50, bf16: 500}, peak_tflops: {f32: 60, bf16: 600}}\n'
    printf 'links: [{name: nic, ranks: all, gb_per_s: 10}]\n'
}
bytes=$(sed -n 's/^  planned *\([0-9.]*\) GiB.*/\1/p' "$folder/out")
fits() { # STATUS WORDS MEMORY HEADROOM
    cluster "$3" "$4" >"$folder/own.yaml"
    start "$1" model.preset=llama-tiny train.batch=1 train.seq=256 --ranks 1 --cluster "$folder/own.yaml"
    has out "^  device .* $2\$"
    has out 'it gives no ranges, 20 % either way are assumed$'
}
fits 0 'it fits' "$(echo "$bytes" | awk '{ print $1 * 1.1 }')" 0
fits 0 'it fits, tight: above 92 %' "$(echo "$bytes" | awk '{ print $1 * 1.05 }')" 0
fits 1 'it does not fit' "$(echo "$bytes" | awk '{ print $1 * 1.05 }')" "$(echo "$bytes" | awk '{ print 0.1 * $1 }')"

# Ranks without work, and uneven ones.
start 0 model.preset=llama-tiny train.batch=12 train.seq=64 --ranks 8
has out '^         2 of 8 data ranks have no sequence, and wait$'
has out '^         train\.batch=16 would be even$'
start 0 model.preset=llama-tiny train.batch=9 train.seq=64 'mesh={shard: 4, tp: 2}' --json
has out '"idle_data_ranks": 1,'
has out '"even_batch": false'

# Deep models and many micro-batches take seconds of processor time, not minutes.
limit=${ASAN_OPTIONS:+60}
(
    ulimit -t "${limit:-8}"
    timeout 100 "$program" plan model.arch=llama model.layers=1023 model.dim=1024 model.heads=8 \
        model.ffn=2816 model.vocab=32000 train.batch=8 train.seq=1024 --ranks 8 >"$folder/out" &&
        timeout 100 "$program" plan model.preset=llama3-8b train.batch=8192 train.seq=1024 \
            train.micro_batches=1024 --ranks 8 >>"$folder/out"
) || complain "1023 layers or 1024 micro-batches take more than ${limit:-8} s of a processor"
has out '^  counted +[1-9][0-9]* of 1024 micro-batches'
# 131,072 ranks: a tree over 16,384 nodes, not a ring.
start 0 model.preset=llama-20b train.batch=131072 train.seq=4096 --ranks 131072 --presets hsdp
mfu=$(sed -n 's/^  MFU *\([0-9]*\).*/\1/p' "$folder/out")
[ "${mfu:-0}" -ge 30 ] || complain "MFU of $mfu % on 131,072 ranks"

# For machines, and as a picture.
start 0 model.preset=llama-tiny train.batch=8 train.seq=64 --ranks 4 --presets fsdp,ddp --json \
    --trace "$folder/trace.json"
has out '"cluster": "8xH100"'
has out '"best": "(fsdp|ddp)"'
has out '"step_s": 0\.[0-9]*[1-9]'
has out '"tokens": 512\.0'
lacks out '"parameters": 0,'
# The trace of the first preset ends when its step does.
grep -q '"name": "reduce_scatter", "ph": "X"' "$folder/trace.json" || complain "no reduction traced"
step=$(sed -n 's/.*"step_s": \([0-9.e-]*\).*/\1/p' "$folder/out" | head -1)
end=$(sed -n 's/.*"ts": \([0-9.]*\), "dur": \([0-9.]*\).*/\1 \2/p' "$folder/trace.json" |
    awk '$1 + $2 > most { most = $1 + $2 } END { printf "%.3f", most }')
echo "$step $end" | awk '{ d = $1 * 1e6 - $2; exit !(d < 0.01 && d > -0.01) }' ||
    complain "the trace ends at $end us, the step takes $step s"

# A cluster file of one's own; a file of keys.
cat >"$folder/c.yaml" <<'END'
name: mine
target: cpu
device: {gb_per_s: 10, tflops: {f32: 0.1, bf16: 0.1}}
links: [{name: shm, ranks: 2, gb_per_s: 5}, {name: tcp, ranks: all, gb_per_s: 0.02, hop_us: 50}]
END
cat >"$folder/run.yaml" <<'END'
model: {preset: llama-tiny}
mesh: {replicate: 2, shard: 2}
train: {batch: 8, seq: 64}
END
start 0 "$folder/run.yaml" --cluster "$folder/c.yaml"
has out '^cluster  mine: 4 devices on 2 nodes of 2;'
has out '^  MFU +unknown'
has out '^  replicate +2 tcp '
has out '^  device +unknown      the cluster file gives no memory_gib$'
start 0 "$folder/run.yaml" --cluster "$folder/c.yaml" --presets ddp,fsdp
has out '^  whether it fits is not known: '
start 0 "$folder/run.yaml" --cluster "$folder/c.yaml" --json
has out '"fits": null,'
has out '"step_s_low": 0\.[0-9]*[1-9]'
start 0 "$folder/run.yaml" --cluster "$folder/c.yaml" --search
has out '^[1-9][0-9]* layouts tried, the fastest that fit:$'
has out "mesh='\{.*\}' parallel.preset=(ddp|fsdp|hsdp|hfsdp) train.micro_batches=[1-9]"
has out 'parallel.sequence_parallel=true$'

# Every rank, by classes; and that no two of them wait for each other.
start 0 model.preset=llama-20b "mesh={replicate: 128, shard: 8}" train.batch=1024 train.seq=2048 \
    --ranks 1024 --presets fsdp,hfsdp --all-ranks
has out '^1024 ranks do [1-9][0-9]? different steps'
has out '^every collective of two steps meets all its members$'
awk '/different steps/ { on = 1 } on && $1 ~ /^[0-9]+$/ && NF == 6 { sum += $1 } END { exit sum != 1024 }' \
    "$folder/out" || complain "the classes have not 1024 ranks"

# This machine, measured.
start 0 model.preset=llama-tiny train.batch=2 train.seq=32 --cluster this
has out '^cluster  measured: 1 devices? on 1 node'
has out '^  compute +0\.[0-9]*[1-9]'
# A plan of this machine computes in what a run here computes in.
planned=$(sed -n 's/^model .* parameters; \([a-z0-9]*\),.*/\1/p' "$folder/out")
printf 'to be or not to be, that is the question. %.0s' 1 2 3 4 5 6 7 8 9 10 >"$folder/text.txt"
cat >"$folder/train.yaml" <<END
model: {preset: llama-tiny}
train: {batch: 1, seq: 32, steps: 1}
data: {path: $folder/text.txt}
run: {dir: $folder/run}
END
timeout 60 "$program" train "$folder/train.yaml" >"$folder/out" 2>"$folder/err" ||
    complain "a run of one step failed"
ran=$(sed -n 's/.*parameters gathered in \([a-z0-9]*\),.*/\1/p' "$folder/run/plan.txt")
[ -n "$ran" ] && [ "$planned" = "$ran" ] || complain "planned in \"$planned\", run in \"$ran\""
start 2 model.preset=llama-tiny --cluster this --ranks 4
has err 'tessera bench probe -n 4'

# What is refused, before anything is planned.
start 2 model.preset=llama-tiny --all-ranks --json
has err 'all-ranks prints a table, --json none'
start 2 model.preset=llama-tiny --all-ranks --ranks 32768 "mesh={shard: 32768}"
has err 'with 32768 ranks, wants at most 16384'
start 2 model.preset=llama-tiny --cluster 8xH10
has err 'nearest: 8xH100'
start 2 model.preset=llama-tiny --presets fsdp,hsdpp
has err '--presets: preset "hsdpp": wants one of .*; the nearest is hsdp'
start 2 model.preset=llama-tiny --ranks 0
has err 'wants a number from 1 to'
start 2 "$folder/run.yaml" --ranks 6
has err '6'
printf 'name: mine\nlinks: []\n' >"$folder/bad.yaml"
start 2 "$folder/run.yaml" --cluster "$folder/bad.yaml"
has err 'bad.yaml:2: links wants a list'
start 2 model.preset=llama-tiny 'mesh={tp: 3}'
has err 'tp=3 on layers\.0\.attn\.q\.weight: it has 8 heads; legal sizes are 1, 2, 4, 8'
start 2 model.preset=llama-20b train.batch=8 train.seq=64 'mesh={tp: 11}'
has err 'it has 4 kv heads; legal sizes are 1, 2, 4, 44$'
start 0 model.preset=llama-20b train.batch=8 train.seq=64 'mesh={tp: 44}'
start 1 model.preset=llama-tiny 'mesh={tp: 3}' --presets hsdp,ddp
has out '^nothing is possible: '
has out '^  hsdp +not possible: tp=3 on '
start 2 model.preset=llama-tiny 'mesh={shard:3}'
has err 'YAML wants a space behind the colon'
start 2 model.preset=llama-tiny --cluster "$folder"
has err 'none of 4xA100-40, .*, and no file: '
start 2 "$folder/missing.yaml"
has err 'missing.yaml'

finish
