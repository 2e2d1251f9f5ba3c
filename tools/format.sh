#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# format.sh checks that sources are formatted as .clang-format says; format.sh --fix formats them.
set -eu
cd "$(dirname "$0")/.."
format=$(command -v clang-format-14 || command -v clang-format) || {
    echo "format.sh: clang-format is not installed; run tools/install_deps.sh" >&2
    exit 1
}
existing=
for file in $(git ls-files -co --exclude-standard -- src include kernels tests examples bench); do
    case $file in
    *.c | *.h | *.cu | *.cuh) [ -f "$file" ] && existing="$existing $file" ;;
    esac
done
if [ "${1:-}" = --fix ]; then
    # shellcheck disable=SC2086
    "$format" -i $existing
    exit 0
fi
# shellcheck disable=SC2086
"$format" --dry-run -Werror $existing
echo "format: all files are as .clang-format says"
