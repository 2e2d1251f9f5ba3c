#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Install, then build and run a program outside the tree in each way there is: in C and in C++,
# against the shared and the static library, by find_package and by pkg-config. In C from an install
# staged by DESTDIR, in C++ after the tree was moved; both folders have a space in their names.
# test_package.sh BUILD CMAKE CC CXX
set -eu
build=$1 cmake=$2 CC=$3 CXX=$4
export CC CXX
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# quietly LOG COMMAND...: its output only if it fails
quietly() {
    log=$work/$1.log
    shift
    "$@" > "$log" 2>&1 || {
        cat "$log"
        echo "failed: $*"
        exit 1
    }
}

# by_cmake LANGUAGE PREFIX
by_cmake() {
    quietly configure "$cmake" -S "$here/consumer" -B "$work/cmake $1" -DLANGUAGE="$1" \
        -DCMAKE_PREFIX_PATH="$2"
    quietly build "$cmake" --build "$work/cmake $1"
    for kind in shared static; do
        quietly run "$work/cmake $1/$kind"
    done
    needs_tessera "$work/cmake $1/shared" || { echo "not linked with the shared library" && exit 1; }
    ! needs_tessera "$work/cmake $1/static" || { echo "linked with the shared library" && exit 1; }
}

needs_tessera() {
    readelf -d "$1" | grep -q 'NEEDED.*libtessera'
}

# by_pkgconfig PREFIX COMPILER...: pkg-config escapes spaces for a shell that reads once more. Of the
# static library all of it is linked, so that whatever a program calls, what it needs is named.
by_pkgconfig() {
    libdir=$(dirname "$(find "$1" -name tessera.pc)")/..
    shift
    flags=$(PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config --cflags --libs tessera)
    eval quietly link '"$@"' '"$here/consumer/main.c"' "$flags" -o '"$work/by pkgconfig"'
    LD_LIBRARY_PATH="$libdir" quietly run "$work/by pkgconfig"
    flags=$(PKG_CONFIG_PATH="$libdir/pkgconfig" pkg-config --static --cflags --libs tessera |
        sed 's/-ltessera/-Wl,--whole-archive -l:libtessera.a -Wl,--no-whole-archive/')
    eval quietly link '"$@"' '"$here/consumer/main.c"' "$flags" -o '"$work/by pkgconfig"'
    quietly run "$work/by pkgconfig"
}

quietly install env DESTDIR="$work/a stage" "$cmake" --install "$build" --prefix /opt/tessera
by_cmake C "$work/a stage/opt/tessera"
by_pkgconfig "$work/a stage/opt/tessera" "$CC" -std=c11
mv "$work/a stage/opt/tessera" "$work/moved here"
by_cmake CXX "$work/moved here"
by_pkgconfig "$work/moved here" "$CXX" -x c++ -Wno-deprecated

# Nothing but the public names leaves the shared library, and none of another's the static one.
libdir=$(dirname "$(find "$work/moved here" -name libtessera.a)")
foreign=$({
    nm -D --defined-only "$libdir/libtessera.so" | awk '{print $3}' | grep -v '^tsr_'
    nm -g --defined-only "$libdir/libtessera.a" | awk 'NF == 3 {print $3}' | grep -v '^tsr[ik]\?_'
} || true)
if [ -n "$foreign" ]; then
    echo "exported beyond tsr_*: $foreign"
    exit 1
fi
echo "installed package serves CMake and pkg-config, in C and C++, shared and static"
