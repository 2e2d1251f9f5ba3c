#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# House rules that no compiler knows: prints each line that breaks one, and fails if there are any.
# lint.sh --sizes also lists the largest files and functions.
set -euf
cd "$(dirname "$0")/.."
bad=0
# Not the whole tree: a build folder may lie in it under any name.
ours='src include kernels tests examples bench tools cmake docs .ci *.md CMakeLists.txt'

# rule TEXT PATTERN PATHSPEC...: no line of these files matches the extended regular expression.
# A line may be excused by "lint: " and the reason in a comment at its end.
rule() {
    text=$1 pattern=$2
    shift 2
    found=$(git grep --untracked -nE -e "$pattern" -- "$@" | grep -v 'lint: ' || true)
    if [ -n "$found" ]; then
        printf '%s\n  rule: %s\n' "$found" "$text"
        bad=1
    fi
}

rule 'the library never exits, prints or allocates raw; see base.h' \
    '(^|[^A-Za-z0-9_>.])(_?exit|abort|v?printf|puts|putchar|malloc|calloc|realloc|strdup|free)\(' \
    'src/*.[ch]' ':!src/base' ':!src/cli' ':!src/backend/boot'
rule 'MPI, NCCL and CUDA are called by backends alone' \
    '(^|[^A-Za-z0-9_])(MPI_[A-Z][A-Za-z_]*|nccl[A-Z][A-Za-z]*|cuda[A-Z][A-Za-z]*|cu(blas|dnn)[A-Z][A-Za-z]*)' \
    'src/*.[ch]' 'include/*.h' ':!src/backend'
rule 'mpi.h, cuda and nccl headers are included in src/backend alone' \
    '#[ ]*include <(mpi|cuda|nccl|cublas|cudnn)' 'src/*.[ch]' 'include/*.h' 'kernels/*.[ch]' \
    ':!src/backend'
rule 'hwloc is included in src/topo and src/backend alone' \
    '#[ ]*include <hwloc' 'src/*.[ch]' 'include/*.h' 'kernels/*.[ch]' ':!src/backend' ':!src/topo'
rule 'oneDNN is included in kernels/cpu/gemm.c alone' \
    '#[ ]*include .*dnnl' 'src/*.[ch]' 'include/*.h' 'kernels/*.[ch]' ':!kernels/cpu/gemm.c'
rule 'jansson is included in src/base/json.h alone' \
    '#[ ]*include <jansson' 'src/*.[ch]' 'include/*.h' 'kernels/*.[ch]' ':!src/base/json.h'
rule 'libyaml and xxHash are included in src/base/yaml.c and hash.c alone' \
    '#[ ]*include <(yaml|xxhash)' 'src/*.[ch]' 'include/*.h' 'kernels/*.[ch]' \
    ':!src/base/yaml.c' ':!src/base/hash.c'
rule 'nothing is left to be done in what is committed' \
    '(^|[^A-Za-z0-9_])(TODO|FIXME|XXX|HACK)([^A-Za-z0-9_]|$)|not (yet )?implemented' \
    src include kernels tests examples bench 'tools/*.sh' ':!tools/lint.sh'
rule 'no unfinished parts in the product' '(^|[^A-Za-z0-9_])[Ss]tubs?([^A-Za-z0-9_]|$)' \
    src include kernels
# Letters in brackets keep these patterns from finding themselves.
rule 'the project speaks of itself alone' \
    '/wor[k]/|/tmp/bas[h]|https?://[^ ]*(registr[y]|prox[y])|thi[s] session|codin[g] agent|AI assistan[t]' \
    $ours
rule 'no mutable global outside src/base/globals.c' \
    '^(static )?(_Thread_local )?(atomic_[a-z0-9_]+|bool|int|unsigned|size_t|double|float|u?int[0-9]+_t|char) \*?g_[a-z_0-9]+( =|;|\[)' \
    'src/*.c' ':!src/base/globals.c'
rule 'messages name axes; a mask says nothing to who reads it' \
    '"[^"]*[Mm]ask[^"]*%[#0-9]*[xXud]|%[#0-9]*[xX][^"]*[Mm]ask[^"]*"' 'src/*.[ch]'
rule 'nothing is left to be filled in in documents' \
    '(^|[^A-Za-z0-9_.])(TODO|TBD|TBA|FIXME|XXX+|[xN]+\.[xN]+|\?\?\?+|[Ll]orem ipsum)([^A-Za-z0-9_]|$)' \
    '*.md' 'docs/*.txt'
rule 'no -ffast-math' 'ffast-math|Ofast' CMakeLists.txt cmake tests/CMakeLists.txt \
    ':!cmake/TesseraKernels.cmake'

# Sources, scripts and build files say whose they are.
for file in $(git ls-files -co --exclude-standard -- $ours); do
    [ -f "$file" ] || continue
    case $file in
    *.c | *.h | *.cu | *.cuh | *.sh | *.cmake | *CMakeLists.txt | .ci/run) ;;
    *) continue ;;
    esac
    if ! head -n 4 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0'; then
        echo "$file:1: no SPDX-License-Identifier in the first lines"
        bad=1
    fi
    case $file in
    *.c | *.h | *.cu | *.cuh)
        case $file in
        tests/*) most=800 ;;
        *) most=600 ;;
        esac
        lines=$(wc -l < "$file")
        if [ "$lines" -gt "$most" ]; then
            echo "$file: $lines lines; split above $most"
            bad=1
        fi
        ;;
    esac
done

# Every public function says, in the comment before it, who has to call it.
for file in $(git ls-files -co --exclude-standard -- include); do
    awk '
    /^\/\*\*/ { comment = ""; inside = 1 }
    inside { comment = comment " " $0; if (/\*\//) inside = 0; next }
    /^TSR_(API|CHECKED) .*\(/ || /^TSR_(API|CHECKED) .*[^;]$/ {
        if (comment !~ /Local|Collective|Logically collective/) {
            print FILENAME ":" FNR ": neither Local nor Collective nor Logically collective: " $0
            bad = 1
        }
    }
    /^[^ ].*;$/ && !/^TSR_/ { comment = "" }
    END { exit bad }' "$file" || bad=1
done

# Structs and names over all sources; figures of documents.
set +f
git ls-files -co --exclude-standard -- src kernels include tests | grep '\.[ch]$' |
    while read -r file; do [ ! -f "$file" ] || echo "$file"; done |
    xargs -r awk -f tools/lint_sources.awk || bad=1
# Files that documents name are there; a name with <x>, * or NN stands for others.
for file in $(git ls-files -co --exclude-standard -- '*.md'); do
    [ -f "$file" ] || continue
    grep -noE '`(src|include|kernels|tests|tools|cmake|examples|bench|clusters)/[A-Za-z0-9_/.-]+`' "$file" |
        tr -d '`' | while IFS=: read -r line name; do
        [ -e "$name" ] || [ "${name#*NN}" != "$name" ] || echo "$file:$line: $name is not there"
    done
done | grep . && bad=1
for file in docs/performance.md docs/memory.md; do
    [ ! -f "$file" ] || awk -f tools/lint_figures.awk "$file" || bad=1
done

if [ "${1:-}" = --sizes ]; then
    git ls-files -- '*.c' '*.h' | xargs wc -l | sort -rn | sed -n '2,11p'
fi
[ "$bad" = 0 ] && echo "lint: no house rule broken"
exit "$bad"
