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
has out '^cluster  8xH100: 16 devices on 2 nodes of 8; file hash [0-9a-f]{16}$'
has out '^mesh     replicate=2 shard=8$'
has out '^== hsdp$'
has out '^  parameter slots +[1-9][0-9]*\.[0-9]+ GiB'
has out '^  device +79\.600 GiB  it (fits|does not fit)$'
has out '^  shard +8 nvlink +[1-9]'
has out '^  replicate +2 nic +[1-9]'
has out '^  MFU +[1-9][0-9.]* %  6 N \+ 6 L h s a token'

# All presets: a table, a verdict, the ledger of states.
start 0 model.preset=llama3-8b train.batch=16 train.seq=4096 --ranks 16 --presets all --cluster 8xH200
for preset in ddp zero1 zero2 fsdp hsdp hfsdp; do
    has out "^  $preset +[0-9]+\.[0-9]+ (yes|no|tight) "
done
has out '^(ddp|zero1|zero2|fsdp|hsdp|hfsdp) wins: '
has out '^  ddp +16\.06 +32\.12 +96\.36 +144\.5[0-9]'
has out '^  fsdp +1\.00 +2\.01 +6\.02 +9\.03'

# A small device: nothing fits, and it says what to do.
start 0 model.preset=llama-20b train.batch=4 train.seq=2048 --cluster 4xA100-40 --presets ddp,fsdp
has out '^  ddp .* no '
has out '^nothing fits: '

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
start 0 "$folder/run.yaml" --cluster "$folder/c.yaml" --search
has out '^[1-9][0-9]* layouts tried, the fastest that fit:$'
has out "mesh='\{.*\}' parallel.preset=(ddp|fsdp|hsdp|hfsdp) train.micro_batches=[1-9]"

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
has err '"hsdpp" is none of ddp,zero1,zero2,fsdp,hsdp,hfsdp; nearest: hsdp'
start 2 model.preset=llama-tiny --ranks 0
has err 'wants a number from 1 to'
start 2 "$folder/run.yaml" --ranks 6
has err '6'
printf 'name: mine\nlinks: []\n' >"$folder/bad.yaml"
start 2 "$folder/run.yaml" --cluster "$folder/bad.yaml"
has err 'bad.yaml:2: links wants a list'
start 2 model.preset=llama-tiny 'mesh={tp: 3}'
has err 'tp=3 on layers\.0\.attn\.q\.weight: it has 8 heads; legal sizes are 1, 2, 4, 8'
start 0 model.preset=llama-tiny 'mesh={tp: 3}' --presets hsdp,ddp
has out '^  hsdp +not possible: tp=3 on '
start 2 model.preset=llama-tiny 'mesh={shard:3}'
has err 'YAML wants a space behind the colon'
start 2 model.preset=llama-tiny --cluster "$folder"
has err 'none of 4xA100-40, .*, and no file: '
start 2 "$folder/missing.yaml"
has err 'missing.yaml'

finish
