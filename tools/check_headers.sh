#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# check_headers.sh FOLDER GENERATED CC [CXX [NVCC]]: each public header, included alone and twice,
# compiles without a warning as C11, as C++17 and as CUDA. An absent compiler is given as "-".
set -eu
folder=$1 generated=$2 cc=$3 cxx=${4:--} nvcc=${5:--}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0
count=0
includes="-I$folder -I$generated"
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wundef -Werror"

for path in "$folder"/tessera/*.h "$generated"/tessera/*.h; do
    header=tessera/$(basename "$path")
    count=$((count + 1))
    printf '#include "%s"\n#include "%s"\n' "$header" "$header" > "$work/one.c"
    cp "$work/one.c" "$work/one.cpp"
    cp "$work/one.c" "$work/$(basename "$path" .h).cu"
    # shellcheck disable=SC2086
    "$cc" -std=c11 $warnings -Wstrict-prototypes $includes -fsyntax-only "$work/one.c" || {
        echo "$header: not alone in C11"
        bad=1
    }
    if [ "$cxx" != - ]; then
        # shellcheck disable=SC2086
        "$cxx" -std=c++17 $warnings $includes -fsyntax-only "$work/one.cpp" || {
            echo "$header: not alone in C++17"
            bad=1
        }
    fi
done
if [ "$nvcc" != - ]; then
    # shellcheck disable=SC2086
    ls "$work"/*.cu | xargs -P 2 -n 1 "$nvcc" -std=c++17 $includes -cuda -o /dev/null || {
        echo "some header: not alone in CUDA"
        bad=1
    }
fi
[ "$count" -gt 0 ] || bad=1
[ "$bad" = 0 ] && echo "$count headers stand alone"
exit "$bad"
