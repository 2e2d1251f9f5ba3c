#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Install to a scratch prefix, then build and run a program outside the tree against it: once by
# find_package, once by pkg-config. test_package.sh BUILD CMAKE CC
set -eu
build=$1 cmake=$2 cc=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" > "$work/install.log"
libdir=$(dirname "$(find "$work/prefix" -name tessera.pc)")/..

"$cmake" -S "$here/consumer" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_C_COMPILER="$cc" > "$work/configure.log" || { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/cmake" > "$work/build.log" || { cat "$work/build.log"; exit 1; }
"$work/cmake/consumer"

export PKG_CONFIG_PATH="$libdir/pkgconfig"
# shellcheck disable=SC2046
"$cc" -std=c11 "$here/consumer/main.c" $(pkg-config --cflags --libs tessera) -o "$work/by_pkgconfig"
LD_LIBRARY_PATH="$libdir" "$work/by_pkgconfig"

# Nothing but the public names leaves the shared library.
foreign=$(nm -D --defined-only "$libdir/libtessera.so" | awk '{print $3}' | grep -v '^tsr_' || true)
if [ -n "$foreign" ]; then
    echo "exported beyond tsr_*: $foreign"
    exit 1
fi
echo "installed package serves CMake and pkg-config"
