#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Install what Tessera is built and tested with, on Debian and its kin. Says first what it installs;
# does nothing where all is there. install_deps.sh --list only names what is missing.
set -eu

packages="build-essential cmake pkg-config libopenmpi-dev openmpi-bin libhwloc-dev libdnnl-dev
libyaml-dev libjansson-dev libxxhash-dev iproute2 git fortunes clang-format clang-tidy"

if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    cat >&2 << 'END'
install_deps.sh knows Debian's packages only. Please install with this system's means:
  a C11 compiler, GNU make, CMake >= 3.25, pkg-config, git
  Open MPI >= 4.1 (or another MPI 3.1), hwloc >= 2, oneDNN >= 2.6, libyaml, jansson >= 2.11, xxHash
  clang-format and clang-tidy 14 for the style checks; fortune texts for the demo; iproute2 for the tests of two hosts
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
if [ "${1:-}" = --list ]; then
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
