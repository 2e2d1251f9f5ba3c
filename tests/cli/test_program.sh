#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_program.sh PROGRAM GOLDEN: the program's commands as a user calls them.
program=$1
golden=$2
. "$(dirname "$0")/harness.sh"

start 0 --help
for name in $("$program" --help | sed -n '/^commands:/,/^$/p' | awk '/^  / { print $1 }'); do
    [ "$name" = help ] || start 0 help "$name"
    has out '^usage: tessera '
    has out '--help +this text'
done

# What cannot be written is a failure, but not that nobody reads any more.
for words in config 'config --json' --help 'help train' "verify $golden/train/llama-tied" \
    "verify $golden/train/llama-tied -n 2"; do
    case_name="$words to a full disk"
    # shellcheck disable=SC2086
    timeout -k 5 120 "$program" $words >/dev/full 2>"$folder/err"
    [ $? = 1 ] || complain 'exit status is not 1'
    passed=$((passed + 1))
    has err '^tessera: cannot write to standard output: No space left on device$'
done
"$program" config >&- 2>"$folder/err" && complain 'closed output is no failure'
has err '^tessera: cannot write to standard output: '
(
    trap '' PIPE
    "$program" config 2>"$folder/err"
    echo $? >"$folder/status"
) | head -n 1 >"$folder/out"
[ "$(cat "$folder/status")" = 0 ] || complain 'a reader that has gone is a failure'
empty err

case=$golden/train/llama-tied
start 0 verify "$case"
has out '^weights: model.safetensors: 20 tensors, BF16 as f32$'
has out '^loss .* ok '
has out '^verified'
empty err
start 0 verify "$case" -n 4 --mesh shard=2,tp=2 --preset fsdp
has out '^mesh shard=2 tp=2, preset fsdp'
empty err
start 0 verify "$case" -n 2 --json
has out '"mesh": "shard=2"'
has out '^  "ok": true'
start 2 verify "$folder/none"
has err '^tessera: .*none'
empty out
start 2 verify "$case" -n 3 --mesh shard=2,tp=2
has err '^tessera: .*3'
start 2 verify "$case" -n 2 --mesh shrad
has err '^tessera: '
start 2 verify "$case" --preset fdsp
has err '^tessera: .*fsdp'

# A folder as a hub's cache lays it out, and weights that somebody else saved: said at the start.
mkdir -p "$folder/hub/blobs" "$folder/hub/snapshots/1a2b"
for name in config.json model.safetensors; do
    cp "$golden/train/gpt2-tiny/$name" "$folder/hub/blobs/0-$name"
    ln -s "../../blobs/0-$name" "$folder/hub/snapshots/1a2b/$name"
done
head -c 4000 "$0" >"$folder/text.txt"
start 0 train /dev/null -n 2 "model.hf=$folder/hub/snapshots/1a2b/config.json" "data.path=$folder/text.txt" \
    train.seq=8 train.batch=2 train.steps=1 "run.dir=$folder/run" run.probe=false
has out '^weights: model.safetensors: 40 tensors, F32$'
empty err
start 2 verify "$golden/files/tied-head-differs"
has err '^tessera: .*model.embed_tokens.weight and lm_head.weight differ: entry 0 is'
mkfifo "$folder/pipe"
start 2 train "$folder/pipe"
has err '^tessera: .*pipe is a pipe'
rm "$folder/hub/snapshots/1a2b/config.json"
mkfifo "$folder/hub/snapshots/1a2b/config.json"
start 2 train /dev/null "model.hf=$folder/hub/snapshots/1a2b"
has err '^tessera: .*config.json is a pipe'

# A reference that is off by more than the bound is not verified: status 1, and no error text.
cp -r "$case" "$folder/off"
chmod -R u+w "$folder/off"
sed -i 's/"loss": \([0-9]\)\./"loss": \11./' "$folder/off/expect.json"
start 1 verify "$folder/off" -n 2
has out '^loss .* FAIL '
has out '^FAILED: '
empty err

# Ranks that somebody's mpirun started with other words each.
mpi="mpirun --oversubscribe --bind-to none --mca btl self,vader"
[ "$(id -u)" = 0 ] && mpi="$mpi --allow-run-as-root"
case_name='ranks that differ'
timeout -k 5 120 $mpi -n 1 "$program" verify "$case" : \
    -n 1 "$program" verify "$case" --checkpointing 1 >"$folder/out" 2>"$folder/err"
[ $? = 1 ] || complain 'exit status is not 1'
passed=$((passed + 1))
has err 'ERR_DISAGREE: what to verify differs between ranks 0 and 1.*checkpointing 0.*checkpointing 1'
[ "$(grep -c '\] ERR_' "$folder/err")" = 1 ] || complain 'one rank speaks'
empty out

finish
