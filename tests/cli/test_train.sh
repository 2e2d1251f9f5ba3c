#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_train.sh PROGRAM: `tessera train` and `tessera config` as a user meets them: the same run on
# every mesh, the run's folder, and what goes wrong.
set -u
program=$1
script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
unset OMP_NUM_THREADS
passed=0
failed=0
case_name=

# start STATUS words...: run the program; the exit status must be right.
start() {
    case_name="$*"
    wanted=$1
    shift
    timeout -k 5 100 "$program" "$@" >out 2>err
    same 'exit status' "$wanted" $?
    passed=$((passed + 1))
    none err 'mpirun noticed|MPI_ABORT|Primary job|help message|-----'
}

complain() {
    echo "FAIL [$case_name]: $1"
    sed 's/^/    out| /' out
    sed 's/^/    err| /' err
    failed=$((failed + 1))
}
same() { [ "$2" = "$3" ] || complain "$1: wants $2, is $3"; }
count() { same "lines of $1 with $2" "$3" "$(grep -cE -e "$2" "$1")"; }
none() { count "$1" "$2" 0; }

# refuse TEXT words...: found before any rank starts, told in one line.
refuse() {
    pattern=$1
    shift
    start 2 train "$@"
    same 'lines on standard error' 1 "$(wc -l <err)"
    count err "^tessera: .*$pattern" 1
    [ ! -s out ] || complain 'standard output is not empty'
}

# column NAME FILE: that number of every row.
column() { sed "s/.*\"$1\": \([^,}]*\)[,}].*/\1/" "$2"; }

# agree A B COLUMN FIRST ALL: rows of two runs agree, the first within FIRST, all within ALL,
# relative.
agree() {
    column "$3" "$1/metrics.jsonl" >a.txt
    column "$3" "$2/metrics.jsonl" >b.txt
    same "rows of $2" "$(wc -l <a.txt)" "$(wc -l <b.txt)"
    paste a.txt b.txt | awk -v first="$4" -v all="$5" -v what="$3 of $2" '
        { error = ($1 - $2) / $1; if (error < 0) error = -error
          limit = NR == 1 ? first : all
          if (!(error <= limit)) { print what ", row " NR ": " $1 " and " $2; bad = 1 } }
        END { exit bad }' >difference.txt || complain "$(cat difference.txt)"
}

i=0
while [ $i -lt 12 ]; do
    cat "$script"
    i=$((i + 1))
done >text.txt
: >empty.txt
printf 'too short' >short.txt
cat >llama.yaml <<'END'
model: {arch: llama, layers: 2, dim: 48, heads: 4, kv_heads: 2, ffn: 90, vocab: 256}
train: {steps: 6, batch: 8, seq: 24, lr: 3e-3, warmup: 2}
parallel: {param_dtype: f32}
data: {path: text.txt}
run: {dir: runs/one}
END
sed -e 's/^model.*/model: {arch: gpt2, layers: 2, dim: 32, heads: 4, ffn: 80, vocab: 256, dropout: 0.2}/' \
    -e 's/steps: 6/steps: 3/' llama.yaml >gpt2.yaml
cat >unknown.yaml <<'END'
model: {preset: llama-tiny}
train:
  stpes: 3
END

# ---- what the starting process sees ----
refuse 'nofile.yaml: cannot open' nofile.yaml
refuse 'unknown.yaml:3: unknown key "train.stpes"; the nearest is "train.steps"' unknown.yaml -n 2
refuse 'command line: train.steps is "many", wants a whole number' llama.yaml train.steps=many -n 2
refuse 'no/file.txt: there is no such file' llama.yaml data.path=no/file.txt -n 2
refuse 'empty.txt is empty' llama.yaml data.path=empty.txt -n 2
refuse 'short.txt: 9 bytes of text are shorter than one sequence' llama.yaml data.path=short.txt
refuse 'model: cannot open: No such file' llama.yaml model.hf=model -n 2
refuse 'mesh shard=3,tp=2 has 6 cells for 4 ranks' llama.yaml -n 4 mesh=shard=3,tp=2
refuse 'legal sizes are 1, 2, 4' llama.yaml -n 3 mesh=tp=3
refuse 'vocabulary has 100' llama.yaml model.vocab=100
refuse 'not available in this version' llama.yaml checkpoint.every=5
refuse 'optimizer group "none.\*" matches no parameter' llama.yaml 'optim.groups=[{match: none.*}]'
refuse 'neither data axes nor claimed' llama.yaml -n 2 'mesh={a: 2, b: 1}' 'parallel.data_axes=[b]'
refuse 'this machine has' llama.yaml -n 2 \
    'model={dim: 65536, heads: 64, ffn: 200000, layers: 90}'
refuse 'text.txt is a file, wants a folder' llama.yaml run.dir=text.txt
refuse 'cluster "nowhere.yaml" is none of .*, and no file: nowhere.yaml: ' llama.yaml -n 2 run.cluster=nowhere.yaml
refuse 'usage: tessera train'
[ ! -e runs ] || complain 'a refused run has left a folder'

# ---- one rank, and what it leaves ----
start 0 train llama.yaml
count out '^step +1/6  loss [0-9.]+  norm ' 1
count out '^loss [0-9.]+ at the first step, [0-9.]+ at the last$' 1
count out '^run folder runs/one$' 1
same 'rows' 6 "$(wc -l <runs/one/metrics.jsonl)"
number='-?[0-9.e+-]+'
count runs/one/metrics.jsonl "^\{\"step\": [0-9]+, \"loss\": $number, \"grad_norm\": $number, \
\"lr\": $number, \"tokens\": 192, \"tokens_per_s\": $number, \"step_s\": $number, \
\"exposed_comm_s\": $number, \"step_s_min\": $number, \"step_s_max\": $number, \
\"slowest_rank\": 0, \"mem_peak_bytes\": [0-9]+, \"bytes_by_axis\": \{\}, \
\"host_sent_bytes\": 0\}\$" 6
count runs/one/config.yaml '^  weight_decay: 0.1$' 1
count runs/one/config.yaml '^mesh: \{shard: 1\}$' 1
start 0 train runs/one/config.yaml run.dir=runs/again
agree runs/one runs/again loss 0 0
start 0 train llama.yaml train.steps=2
count out '^run folder runs/one-2; planned' 1
same 'rows of the older run' 6 "$(wc -l <runs/one/metrics.jsonl)"
same 'rows of the newer run' 2 "$(wc -l <runs/one-2/metrics.jsonl)"

# ---- links at the start: two runs, the first declares what no machine has ----
cat >fast.yaml <<'END'
name: fast
target: cpu
device: {gb_per_s: 5, tflops: {f32: 0.05, bf16: 0.05}}
links: [{name: memory, ranks: all, gb_per_s: 900}]
END
start 0 train llama.yaml -n 2 train.steps=1 run.dir=runs/links run.cluster=fast.yaml
count out '^links: shard of 2 ranks [0-9.]+ GB/s, [0-9.]+ [mu]s a hop; measured in [01]\.[0-9]+ s$' 1
count out '^warning: axis "shard" sends [0-9.]+ GB/s a rank, run.cluster says 900: a factor ' 1
start 0 train llama.yaml -n 2 train.steps=1 run.dir=runs/nolinks run.cluster=fast.yaml run.probe=false
count out '^links:|^warning' 0
count out '^train.warmup is 2 steps, train.steps 1: the learning rate gets to 0.0015 and not to ' 1
agree runs/links runs/nolinks loss 0 0

# ---- the same run on other meshes ----
# f32 with sums of other shapes: the first step within 1e-6, later ones within 1e-5.
parity() {
    name=$1
    shift
    start 0 train llama.yaml "run.dir=runs/$name" "$@"
    agree runs/one "runs/$name" loss 1e-6 1e-5
    agree runs/one "runs/$name" grad_norm 1e-5 1e-4
    planned=$(awk '$1 == "total" { print $2 }' "runs/$name/plan.txt")
    column mem_peak_bytes "runs/$name/metrics.jsonl" | tail -n 1 | awk -v planned="$planned" \
        '{ error = $1 / planned - 1; exit !(error < 0.02 && error > -0.02) }' ||
        complain "peak memory is not the plan's $planned"
}
parity micro train.micro_batches=4
parity tp -n 2 mesh=tp=2
parity shard3 -n 3 parallel.preset=fsdp
parity mixed -n 4 mesh=shard=2,tp=2
count runs/mixed/metrics.jsonl '"bytes_by_axis": \{.*"shard": [1-9][0-9]*, "tp": [1-9][0-9]*' 6
parity hsdp -n 4 mesh=replicate=2,shard=2 train.micro_batches=2
parity sequence -n 2 mesh=tp=2 parallel.sequence_parallel=true
parity blocks -n 2 parallel.activation_checkpointing=block
parity offload -n 2 'parallel.offload=[parameters, gradients, optimizer]'
count runs/offload/plan.txt '^in host memory, bytes' 1
parity away -n 2 parallel.activation_checkpointing=block 'parallel.offload=[activations]'
count runs/away/plan.txt '^in host memory, bytes' 1
parity ddp -n 4 mesh=replicate=4 parallel.preset=ddp
parity uneven -n 3 mesh=replicate=3 parallel.preset=ddp
# Four sequences over five data ranks leave one without any.
parity idle -n 5 train.micro_batches=2 mesh=shard=5

# In halves: no parity to 1e-5, but the same run to their precision (2^-8 and 2^-11 of the loss, a
# few operations deep).
start 0 train llama.yaml -n 2 run.dir=runs/bf16 parallel.param_dtype=bf16
agree runs/one runs/bf16 loss 0.004 0.02
start 0 train llama.yaml -n 2 run.dir=runs/f16 parallel.param_dtype=f16 parallel.reduce_dtype=f16
agree runs/one runs/f16 loss 0.001 0.01

# Dropout masks are those of the step, not of the mesh.
start 0 train gpt2.yaml run.dir=runs/g1
for words in 'train.micro_batches=2' '-n 2 mesh=tp=2' '-n 4 mesh=shard=2,tp=2 train.micro_batches=2'; do
    # shellcheck disable=SC2086
    start 0 train gpt2.yaml run.dir=runs/g2 $words
    agree runs/g1 runs/g2 loss 1e-6 1e-5
    rm -r runs/g2
done
start 0 train gpt2.yaml run.dir=runs/g0 model.dropout=0
column loss runs/g0/metrics.jsonl >a.txt
column loss runs/g1/metrics.jsonl >b.txt
if cmp -s a.txt b.txt; then
    complain 'dropout changes nothing'
fi

# ---- other forms of the result ----
start 0 train llama.yaml -n 2 run.dir=runs/json train.steps=2 --json log.trace=true
count out '^  "last_loss": [0-9.]+,$' 1
count out '^  "run_dir": "runs/json",$' 1
count err '^step +1/2 ' 1
count runs/json/trace-rank0.json '"name": "all_gather", "ph": "X"' \
    "$(grep -c '"name": "all_gather"' runs/json/trace-rank0.json)"
grep -q '"name": "all_gather"' runs/json/trace-rank0.json || complain 'no gather in the trace'
start 0 train llama.yaml run.dir=runs/every train.steps=5 log.every=2
same 'rows' '2 4 5' "$(column step runs/every/metrics.jsonl | tr '\n' ' ' | sed 's/ $//')"
start 0 config train.lr
count out '^train.lr: 3e-4$' 1
start 2 config train.lrr
count err '^tessera: .*unknown key "train.lrr"; the nearest is "train.lr"$' 1
start 0 config --json
count out '"key": ' "$("$program" config | grep -cE '^[a-z_.]+: ')"

# ---- what only ranks can see ----
start 1 train llama.yaml -n 2 run.dir=runs/nan optim.kind=sgd train.lr=1e6 train.warmup=0 \
    train.clip_norm=0 train.steps=30
count err 'ERR_STATE: step [0-9]+: loss .*not finite; the update was skipped' 1
none err 'rank 1/2'
count runs/nan/metrics.jsonl '"(loss|grad_norm)": null' 1
start 1 train llama.yaml -n 2 run.dir=/proc/none
count err '^.rank 0/2. ERR_IO: cannot make folder /proc/none' 1
cp text.txt shrinks.txt
case_name='a file that shrinks'
timeout -k 5 60 "$program" train llama.yaml -n 2 data.path=shrinks.txt train.steps=100000 \
    run.dir=runs/shrinks >out 2>err &
runner=$!
tries=0
until [ -s runs/shrinks/metrics.jsonl ] || [ $tries -ge 200 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
: >shrinks.txt
wait $runner
same 'exit status' 1 $?
count err 'ERR_IO: data file shrinks.txt has no byte [0-9]+ any more' 1
passed=$((passed + 1))

case_name='ranks that differ'
mpi="mpirun --oversubscribe --bind-to none --mca btl self,vader"
[ "$(id -u)" = 0 ] && mpi="$mpi --allow-run-as-root"
differ() {
    pattern=$1
    shift
    $mpi -n 1 "$program" train llama.yaml run.dir=runs/differ : \
        -n 1 "$program" train "$@" run.dir=runs/differ >out 2>err
    same 'exit status' 1 $?
    count err "$pattern" 1
    [ ! -e runs/differ ] || complain 'a folder is left'
    passed=$((passed + 1))
}
sed 's/^/ /' text.txt >other.txt
mkdir -p else
cp llama.yaml else/llama.yaml
differ 'rank 0/2. ERR_DISAGREE: the configuration differs between ranks 0 and 1.*seed: 1' \
    llama.yaml train.seed=2
differ 'ERR_IO: none.yaml: cannot open' none.yaml
# The same words in another folder: the files differ.
printf '%s\n' '#!/bin/sh' 'cd else && exec "$@"' >elsewhere
chmod +x elsewhere
cp other.txt else/text.txt
$mpi -n 1 "$program" train llama.yaml run.dir=runs/differ : \
    -n 1 ./elsewhere "$program" train llama.yaml run.dir=runs/differ >out 2>err
same 'exit status' 1 $?
count err 'rank 0/2. ERR_DISAGREE: the data differs between ranks 0 and 1' 1
rm else/text.txt
$mpi -n 1 "$program" train llama.yaml run.dir=runs/differ : \
    -n 1 ./elsewhere "$program" train llama.yaml run.dir=runs/differ >out 2>err
same 'exit status' 1 $?
count err 'rank 1/2. ERR_IO: data.path text.txt: there is no such file' 1
none err 'rank 0/2'
[ ! -e runs/differ ] || complain 'a folder is left'
passed=$((passed + 2))

echo "$passed passed, $failed failed"
[ $failed = 0 ]
