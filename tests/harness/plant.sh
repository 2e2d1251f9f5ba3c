#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# The layer and house checks find what is planted. plant.sh SOURCE
set -eu
source=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/src/mesh" "$tree/src/comm" "$tree/src/nn" "$tree/kernels" "$tree/include/tessera" "$tree/tools"
cp "$source"/tools/*.sh "$source"/tools/*.txt "$tree/tools/"
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
head=
printf '/** Local. */\n' > include/tessera/mesh.h
plant src/nn/a.c 'int x;' lint.sh 'no SPDX'
echo "every planted fault is found"
