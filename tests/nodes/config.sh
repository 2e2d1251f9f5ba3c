# shellcheck shell=sh disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Sourced: configs of small runs, gpt2.yaml and llama.yaml in $scratch, and how their rows compare.

seq 1 8000 > "$scratch/text.txt"
for arch in gpt2 llama; do
    extra=
    [ $arch = llama ] && extra='kv_heads: 2, '
    cat > "$scratch/$arch.yaml" << END
model: {arch: $arch, layers: 2, dim: 64, heads: 4, ${extra}ffn: 120, vocab: 256}
mesh: {replicate: 2, shard: 2}
parallel: {preset: hsdp, param_dtype: f32, reduce_dtype: f32}
train: {steps: 6, batch: 8, micro_batches: 2, seq: 24, lr: 3e-3, warmup: 2}
data: {path: $scratch/text.txt}
END
done

# column NAME RUN: that number of every row.
column() { sed "s/.*\"$1\": \([^,}]*\)[,}].*/\1/" "$2/metrics.jsonl"; }

# agree RUN RUN COLUMN FIRST ALL: rows agree, the first within FIRST, all within ALL, relative.
agree() {
    column "$3" "$1" > "$scratch/a.txt"
    column "$3" "$2" > "$scratch/b.txt"
    [ "$(wc -l < "$scratch/a.txt")" = "$(wc -l < "$scratch/b.txt")" ] ||
        complain "$1 and $2 have different numbers of rows"
    paste "$scratch/a.txt" "$scratch/b.txt" | awk -v first="$4" -v all="$5" -v what="$3 of $2" '
        { error = ($1 - $2) / $1; if (error < 0) error = -error
          limit = NR == 1 ? first : all
          if (!(error <= limit)) { print what ", row " NR ": " $1 " and " $2; bad = 1 } }
        END { exit bad || NR == 0 }' || complain "$3 of $1 and $2"
}
