#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# From a fresh machine to a model in training: installs what is missing, builds, and trains
# llama-tiny on 8 ranks with three kinds of parallelism at once.
#
#   demo.sh [FILE]   train on FILE instead of the texts of Debian's package fortunes
#
# What is trained, and how: examples/train/demo.yaml. Further settings, such as train.steps=100, may
# follow FILE.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
text=
case "${1:-}" in
'' | *=*) ;;
-*)
    echo "usage: demo.sh [FILE] [key=value ...]" >&2
    exit 2
    ;;
*)
    if [ ! -f "$1" ] || [ ! -r "$1" ]; then
        echo "demo.sh: there is no readable file $1" >&2
        exit 2
    fi
    text=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
    shift
    ;;
esac
cd "$here"
begin=$(date +%s)

say() {
    printf '== %s (%d s)\n' "$1" $(($(date +%s) - begin))
}

say 'what Tessera needs'
if [ -n "$text" ]; then
    tools/install_deps.sh program
else
    tools/install_deps.sh program text
fi

say 'build'
mkdir -p build/demo
if ! { cmake -S . -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo &&
    cmake --build build --target tessera_program -j "$(nproc)"; } > build/demo/build.log 2>&1; then
    tail -n 40 build/demo/build.log >&2
    echo 'demo.sh: the build failed; all of its output is in build/demo/build.log' >&2
    exit 1
fi
echo 'build/tessera is there'

if [ -z "$text" ]; then
    say 'text'
    # Each collection also has an index, NAME.dat, and a link, NAME.u8.
    text=$here/build/demo/text.txt
    for file in /usr/share/games/fortunes/*; do
        case $file in
        *.dat | *.u8) ;;
        *) [ ! -f "$file" ] || cat "$file" ;;
        esac
    done > "$text"
    if [ ! -s "$text" ]; then
        echo 'demo.sh: the package fortunes has left no text in /usr/share/games/fortunes' >&2
        exit 1
    fi
    printf '%d bytes of English from the package fortunes\n' "$(wc -c < "$text")"
fi

# A folder that no run has yet.
run=runs/demo
number=1
while [ -e "$run/metrics.jsonl" ]; do
    number=$((number + 1))
    run=runs/demo-$number
done

say 'train'
quoted=$(printf '%s' "$text" | sed 's/[\\"]/\\&/g')
build/tessera train examples/train/demo.yaml -n 8 "data.path=\"$quoted\"" "run.dir=$run" "$@"

say 'result'
loss() {
    sed 's/.*"loss": \([^,]*\),.*/\1/'
}
first=$(head -n 1 "$run/metrics.jsonl" | loss)
last=$(tail -n 1 "$run/metrics.jsonl" | loss)
awk -v first="$first" -v last="$last" \
    'BEGIN { printf "loss in nats per byte: %.4f at the first step, %.4f at the last\n", first, last }'
echo "everything about the run is in $here/$run"
if ! awk -v first="$first" -v last="$last" \
    'BEGIN { exit !(first + 0 == first && last + 0 == last && last < first) }'; then
    echo 'demo.sh: the loss has not fallen' >&2
    exit 1
fi
