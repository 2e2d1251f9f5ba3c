#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# The layer and house checks find what is planted. plant.sh SOURCE
set -eu
source=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/src/mesh" "$tree/src/comm" "$tree/src/nn" "$tree/src/plan" "$tree/src/train" "$tree/docs"
mkdir -p "$tree/kernels" "$tree/include/tessera" "$tree/tools" "$tree/tests"
cp "$source"/tools/*.sh "$source"/tools/*.txt "$source"/tools/*.awk "$tree/tools/"
head='/* SPDX-License-Identifier: Apache-2.0 */'
cd "$tree"
git init -q .

expect() { # expect CHECK PATTERN: the check fails and says so
    if output=$("tools/$1" 2>&1); then
        echo "$1 does not find: $2"
        exit 1
    fi
    printf '%s\n' "$output" | grep -q -- "$2" || {
        printf '%s\n' "$output"
        echo "$1 does not say: $2"
        exit 1
    }
}

plant() { # plant FILE LINE CHECK PATTERN
    printf '%s\n%s\n' "$head" "$2" > "$1"
    expect "$3" "$4"
    rm "$1"
}

printf '%s\n/** Local. Nothing. */\n' "$head" > include/tessera/mesh.h
tools/check_layers.sh > /dev/null
tools/lint.sh > /dev/null
plant src/mesh/a.c '#include "comm/comm.h"' check_layers.sh 'mesh may not use comm'
plant src/mesh/a.c '#include "tessera/comm.h"' check_layers.sh 'mesh may not use comm'
plant src/nn/a.c '#include "tessera/optim.h"' check_layers.sh 'nn may not use optim'
plant src/comm/a.c '#include "mesh/mesh_priv.h"' check_layers.sh 'private to mesh'
plant src/comm/a.c '#include "kernels/cpu/cpu_priv.h"' check_layers.sh 'private to kernels'
plant src/comm/a.c '#include "tessera/unknown.h"' check_layers.sh 'has no owner'
plant include/tessera/new.h '' check_layers.sh 'no owner'
plant src/nn/a.c 'void f(void) { abort(); }' lint.sh 'never exits'
plant src/nn/a.c 'void *f(void) { return malloc(1); }' lint.sh 'never exits'
plant src/nn/a.c 'int f(void) { return MPI_Barrier(MPI_COMM_WORLD); }' lint.sh 'backends alone'
plant src/nn/a.c '#include <jansson.h>' lint.sh 'jansson'
plant src/nn/a.c 'static int g_count = 0;' lint.sh 'mutable global'
plant src/nn/a.c "/* TO""DO later */" lint.sh 'left to be done'
plant include/tessera/mesh.h 'TSR_API int tsr_mesh_size(void);' lint.sh 'neither Local'
plant src/nn/a.c 'TSR_RAISE(TSR_ERR_INVALID, "axis mask 0x%x", mask)' lint.sh 'messages name axes'
plant src/plan/a.c '#include "train/loop.h"' check_layers.sh 'plan may not use train'
plant src/train/a.c '#include "verify/verify.h"' check_layers.sh 'train may not use verify'
lines() { # lines COUNT TEXT: so many lines of it
    awk -v n="$1" -v text="$2" 'BEGIN { while (n-- > 0) print text }'
}
plant src/nn/a.c "$(lines 600 '/* long */')" lint.sh 'split above 600'
plant src/nn/a.c "struct big {
$(lines 26 '    int one;')
};" lint.sh 'a struct of 26 fields'
plant include/tessera/mesh.h "typedef struct big {
    int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x;
    struct {
        int a, b, c;
    } y;
    void (*z)(int a, int b);
} big;" lint.sh 'a struct of 26 fields'
for file in a b c; do
    printf '%s\nstatic int twice(int a)\n{\n    return a;\n}\n' "$head" > src/nn/$file.c
done
expect lint.sh 'function twice is defined 3 times'
rm src/nn/c.c
tools/lint.sh > /dev/null
rm src/nn/a.c src/nn/b.c
printf '%s\nstruct big { /* lint: a table */\n%s\n};\n' "$head" "$(lines 26 '    int one;')" > src/nn/a.c
tools/lint.sh > /dev/null
rm src/nn/a.c
head='# Performance'
plant docs/a.md 'Takes x.xx ms.' lint.sh 'filled in in documents'
plant docs/a.md 'See `src/nn/gone.c`.' lint.sh 'src/nn/gone.c is not there'
plant docs/a.md 'T''BD' lint.sh 'filled in in documents'
plant docs/performance.md '
| a | 1.5 ms |' lint.sh 'performance.md:3: figures without'
printf '# Memory\n\n`tessera plan`:\n\n| a | 1.5 |\n' > docs/memory.md
tools/lint.sh > /dev/null
printf '\nText.\n\n| b | 2.5 |\n' >> docs/memory.md
expect lint.sh 'memory.md:9: figures without'
rm docs/memory.md
head=
printf '/** Local. */\n' > include/tessera/mesh.h
plant src/nn/a.c 'int x;' lint.sh 'no SPDX'
echo "every planted fault is found"
