#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# Everything that must hold before a change lands: build, all tests, the same under sanitizers,
# clang-tidy. The last line sums all of it as "N passed, N failed"; the exit status agrees.
#
#   check.sh [--quick]   --quick leaves out sanitizers and clang-tidy
#
# TSR_JOBS sets how many things run at once (default: the cores).
set -eu
cd "$(dirname "$0")/.."
quick=no
case "${1:-}" in
--quick) quick=yes ;;
'') ;;
*)
    echo "usage: check.sh [--quick]" >&2
    exit 2
    ;;
esac
jobs=${TSR_JOBS:-$(nproc)}
passed=0
failed=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

summary() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
    exit $?
}

say() {
    printf '== %s (%s)\n' "$1" "$(date +%T)"
}

# step NAME COMMAND...: counts as one test.
step() {
    name=$1
    shift
    say "$name"
    if "$@" > "$log" 2>&1; then
        tail -n 1 "$log"
        passed=$((passed + 1))
        return 0
    fi
    cat "$log"
    echo "$name failed"
    failed=$((failed + 1))
    return 1
}

# tests NAME FOLDER ARGUMENT...: run ctest and add its counts.
tests() {
    name=$1 folder=$2
    shift 2
    say "$name"
    status=0
    ctest --test-dir "$folder" -j "$jobs" --no-tests=error --output-on-failure "$@" > "$log" 2>&1 ||
        status=$?
    cat "$log"
    # "98% tests passed, 2 tests failed out of 100"
    counts=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests* failed out of \([0-9]*\)$/\1 \2/p' \
        "$log" | tail -n 1)
    if [ -z "$counts" ]; then
        echo "$name: ctest gave no result"
        failed=$((failed + 1))
        return
    fi
    bad=${counts% *}
    failed=$((failed + bad))
    passed=$((passed + ${counts#* } - bad))
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then
        failed=$((failed + 1))
    fi
}

step "packages" tools/install_deps.sh || summary
step "configure" cmake -S . -B build -DCMAKE_BUILD_TYPE=RelWithDebInfo || summary
step "build" cmake --build build -j "$jobs" || summary
tests "tests" build -LE long
if [ "$quick" = no ]; then
    step "configure with sanitizers" cmake -S . -B build-asan -DCMAKE_BUILD_TYPE=Debug \
        -DTSR_SANITIZE=ON || summary
    if step "build with sanitizers" cmake --build build-asan -j "$jobs"; then
        tests "tests with sanitizers" build-asan -L 'unit|dist|conformance|property|fuzz|harness' \
            -LE long
    fi
    step "clang-tidy" tools/tidy.sh build || true
fi
summary
