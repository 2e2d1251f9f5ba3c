#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# hsdp_vs_fsdp.sh --program TESSERA [--out FOLDER] [--reduce f32|bf16]
#
# Forecasts llama-20b under fsdp, hsdp and hfsdp over bandwidth between nodes x accumulation x nodes
# (tessera plan, cluster 8xH200 with another link between nodes), and writes a table of step times
# and a figure of fsdp's time over theirs: FOLDER/hsdp-vs-fsdp-REDUCE.{txt,svg}. Takes a few minutes.
set -eu
program=
out=docs/figures
reduce=f32
here=$(cd "$(dirname "$0")/.." && pwd)
while [ $# -gt 0 ]; do
    case $1 in
    --program) program=$2 ;;
    --out) out=$2 ;;
    --reduce) reduce=$2 ;;
    *) echo "hsdp_vs_fsdp.sh: what is $1?" >&2; exit 2 ;;
    esac
    shift 2
done
[ -x "$program" ] || { echo "hsdp_vs_fsdp.sh: --program wants the tessera program" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$out"
table=$out/hsdp-vs-fsdp-$reduce.txt

# step NODES MICRO GBIT: fsdp, hsdp and hfsdp seconds
step() {
    awk -v rate="$3" '/name: nic/ { sub(/gb_per_s: (\[[^]]*\]|[0-9.]+)/, "gb_per_s: " rate / 8) } { print }' \
        "$here/clusters/8xH200.yaml" >"$folder/cluster.yaml"
    "$program" plan model.preset=llama-20b "mesh={replicate: $1, shard: 8}" \
        "train.batch=$(($1 * 8 * $2))" "train.micro_batches=$2" train.seq=8192 \
        parallel.activation_checkpointing=block "parallel.reduce_dtype=$reduce" \
        --presets fsdp,hsdp,hfsdp --cluster "$folder/cluster.yaml" --json |
        awk -F'[:,]' '/"step_s"/ { printf "%.3f ", $2 }'
}

{
    echo "# nodes micro_batches gbit_per_s_per_node fsdp_s hsdp_s hfsdp_s"
    for nodes in 2 16 128; do
        for micro in 1 4 16; do
            for gbit in 50 100 200 400 800 1600 3200; do
                echo "$nodes $micro $gbit $(step $nodes $micro $gbit)"
            done
        done
    done
} >"$table"

awk -v reduce="$reduce" '
function x(gbit) { return left + width * log(gbit / 50) / log(3200 / 50) }
function y(ratio) { return top + height * (1 - log(ratio / low) / log(high / low)) }
function line(nodes, micro, column, dash, colour,   i, points) {
    points = ""
    for (i = 1; i <= rows; i++)
        if (n[i] == nodes && a[i] == micro)
            points = points sprintf("%.1f,%.1f ", x(g[i]), y(t[i, 1] / t[i, column]))
    printf "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
        points, colour, dash
}
/^#/ { next }
{ rows++; n[rows] = $1; a[rows] = $2; g[rows] = $3; for (k = 1; k <= 3; k++) t[rows, k] = $(3 + k) }
END {
    low = 0.7; high = 20; width = 250; height = 260; top = 60
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 400\" "
    printf "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"960\" height=\"400\" fill=\"white\"/>\n"
    printf "<text x=\"480\" y=\"20\" text-anchor=\"middle\" font-size=\"15\">Step time of fsdp over that of "
    printf "hsdp (solid) and hfsdp (dashed): llama-20b, nodes of 8, gradients reduced in %s</text>\n", reduce
    split("2 16 128", nodes, " "); split("1 4 16", micros, " ")
    split("#1b6ca8 #d9822b #2b8a3e", colours, " ")
    split("50 100 200 400 800 1600 3200", ticks, " "); split("0.7 1 2 5 10 20", marks, " ")
    for (p = 1; p <= 3; p++) {
        left = 60 + (p - 1) * 305
        printf "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" stroke=\"#888\"/>\n", left, top, width, height
        printf "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d nodes</text>\n", left + width / 2, top - 8, nodes[p]
        for (i = 1; i <= 7; i++)
            printf "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x(ticks[i]), top + height + 18, ticks[i]
        for (i = 1; i <= 6; i++) {
            printf "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", left, left + width, y(marks[i]), y(marks[i]), marks[i] == 1 ? "#888" : "#ddd"
            printf "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", left - 5, y(marks[i]) + 4, marks[i]
        }
        for (m = 1; m <= 3; m++) {
            line(nodes[p], micros[m], 2, "", colours[m])
            line(nodes[p], micros[m], 3, " stroke-dasharray=\"6 4\"", colours[m])
        }
    }
    printf "<text x=\"480\" y=\"%d\" text-anchor=\"middle\">Gbit/s out of a node, all interfaces</text>\n", top + height + 38
    for (m = 1; m <= 3; m++) {
        printf "<rect x=\"%d\" y=\"375\" width=\"14\" height=\"4\" fill=\"%s\"/>", 290 + m * 90, colours[m]
        printf "<text x=\"%d\" y=\"381\">A = %s</text>\n", 310 + m * 90, micros[m]
    }
    print "</svg>"
}' "$table" >"$out/hsdp-vs-fsdp-$reduce.svg"
echo "hsdp_vs_fsdp.sh: wrote $table and $out/hsdp-vs-fsdp-$reduce.svg"
