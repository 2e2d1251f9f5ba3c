#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Install what Tessera is built and tested with, on Debian and its kin. Says first what it installs;
# does nothing where all is there.
#
#   install_deps.sh [--list] [program] [text] [checks]
#
# program: what builds and runs build/tessera; text: what tools/demo.sh trains on; checks: what the
# tests and style checks take besides. Without a name, all three. --list only names what is missing.
set -eu

program="gcc make libc6-dev cmake libopenmpi-dev openmpi-bin libhwloc-dev libdnnl-dev libyaml-dev
libjansson-dev libxxhash-dev"
text="fortunes"
checks="build-essential pkg-config iproute2 git clang-format clang-tidy"

list=
packages=
for word in "$@"; do
    case $word in
    --list) list=1 ;;
    program) packages="$packages $program" ;;
    text) packages="$packages $text" ;;
    checks) packages="$packages $checks" ;;
    *)
        echo "usage: install_deps.sh [--list] [program] [text] [checks]" >&2
        exit 2
        ;;
    esac
done
[ -n "$packages" ] || packages="$program $text $checks"

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    cat >&2 << 'END'
install_deps.sh knows Debian's packages only. Please install with this system's means:
  a C11 compiler, GNU make, CMake >= 3.25
  Open MPI >= 4.1 (or another MPI 3.1), hwloc >= 2, oneDNN >= 2.6, libyaml, jansson >= 2.11, xxHash
  for the demo: fortune texts; for the tests: a C++ compiler, pkg-config, git, iproute2 (two hosts)
  and clang-format and clang-tidy 14 for the style checks
END
    exit 1
fi

missing=
for package in $packages; do
    state=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$state" = "install ok installed" ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
    echo "install_deps.sh: everything is installed"
    exit 0
fi
echo "install_deps.sh: installs$missing"
if [ -n "$list" ]; then
    exit 0
fi
as_root=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo > /dev/null; then
        echo "install_deps.sh: needs root or sudo" >&2
        exit 1
    fi
    as_root=sudo
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing
