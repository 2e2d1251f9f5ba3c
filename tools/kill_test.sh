#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# kill_test.sh PROGRAM [COUNT [SEED]]: COUNT (20) runs of `PROGRAM train` on 2 to 8 ranks, each hit
# once while it starts, trains or ends: KILL, STOP, INT or TERM to its starter, its keeper, mpirun or
# a rank, drawn from SEED (1). Each must be over within run.timeout_s and 5 s, with a failure, name
# who was hit, say nothing else, and leave no process and nothing in /dev/shm behind.
#
# Exceptions, which are right: a run that was complete when it was hit may end well; stopping the
# keeper, which is continued, or the starter, which a terminal does too, ends no run.
set -u
program=$(realpath "$1")
count=${2:-20}
seed=${3:-1}
limit=4 # run.timeout_s
steps=120
folder=$(mktemp -d)
tag="TESSERA_KILL_TEST=$(basename "$folder")"
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
cd "$folder" || exit 1
export OMP_NUM_THREADS=1
passed=0
failed=0

awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%d words and %d more\n", i * i % 977, i }' >text.txt
cat >run.yaml <<END
model: {arch: llama, layers: 2, heads: 2, kv_heads: 2, dim: 32, ffn: 64, vocab: 256}
mesh: auto
train: {steps: $steps, batch: 24, seq: 32}
data: {kind: text, path: text.txt}
run: {dir: run, timeout_s: $limit}
END

now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{ printf "%.2f", $1 - $2 }'; }
rows() { { wc -l <run/metrics.jsonl; } 2>/dev/null || echo 0; }
state() { sed 's/.*) //; s/ .*//' "/proc/$1/stat" 2>/dev/null; }
# below PID: its children, oldest first.
below() { ps -o pid= --ppid "$1" 2>/dev/null | tr -d ' ' | sort -n; }
# The processes of the job, however they are related by now.
alive() {
    for file in $(grep -lzsx "$tag" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        pid=${pid%/environ}
        [ "$pid" = $$ ] || [ "$(state "$pid")" = Z ] || echo "$pid"
    done
}

# find_process WHOM: its number, as soon as there is such a process; empty if it never comes.
find_process() {
    tries=0
    while [ $tries -lt 60 ] && [ ! -e status ]; do
        pid=$starter
        [ "$1" = starter ] || pid=$(below "$pid" | head -n 1)
        case $1 in starter | keeper) ;; *) [ -z "$pid" ] || pid=$(below "$pid" | head -n 1) ;; esac
        case $1 in
        rank*) [ -z "$pid" ] || pid=$(for r in $(below "$pid"); do
            grep -zqsx "OMPI_COMM_WORLD_RANK=${1#rank}" "/proc/$r/environ" && echo "$r"
        done | head -n 1) ;;
        esac
        if [ -n "$pid" ]; then
            echo "$pid"
            return
        fi
        sleep 0.05
        tries=$((tries + 1))
    done
}

# wait_rows N: until the run has N rows, or is over.
wait_rows() {
    tries=0
    while [ "$(rows)" -lt "$1" ] && [ ! -e status ] && [ $tries -lt 600 ]; do
        sleep 0.02
        tries=$((tries + 1))
    done
}

fault() {
    faults="$faults; $1"
}

# What is said of who was hit.
check_words() {
    case $signal.$whom in
    KILL.rank* | TERM.rank* | INT.rank* | STOP.rank*) pattern="rank(\(s\) [0-9, ]*)? ?${whom#rank}([^0-9]|\$)" ;;
    KILL.starter) pattern='the job was ended|^$' ;;
    *.mpirun) pattern='mpirun|the job was ended' ;;
    KILL.keeper) pattern='keeps the job was killed by signal 9' ;;
    *) pattern='the job was ended' ;;
    esac
    [ "$result" = 0 ] || grep -Eq "$pattern" err || [ "$signal.$whom" = KILL.starter ] ||
        fault "nobody names $whom"
    noise=$(grep -Evc '^(\[rank [0-9]+/[0-9]+\]|tessera: )|^(Killed|Terminated|Interrupt)?$' err)
    [ "$noise" = 0 ] || fault "$noise lines of noise"
}

check_result() {
    complete=no
    if [ "$(rows)" -ge $steps ]; then
        complete=yes
    fi
    case $complete.$signal.$whom in
    yes.* | no.STOP.starter | no.STOP.keeper) ;;
    *) [ "$result" != 0 ] || fault 'status 0' ;;
    esac
    within=$((limit + 5))
    echo "$took $within" | awk '{ exit !($1 <= $2) }' || fault "took $took s"
    left=$(alive)
    [ -z "$left" ] || fault "left processes: $(echo $left)"
    [ -z "$left" ] || kill -s KILL $left 2>/dev/null
    left=$(find /dev/shm -maxdepth 1 -name "tessera-$starter-*")
    [ -z "$left" ] || fault "left $left"
    [ -z "$left" ] || rm -rf "$left"
}

# hit RANKS PHASE DELAY SIGNAL WHOM
hit() {
    ranks=$1 phase=$2 delay=$3 signal=$4 whom=$5
    rm -rf run run-* status out err pid
    (
        env "$tag" sh -c 'echo $$ >pid; exec "$@"' sh "$program" train run.yaml -n "$ranks" >out 2>err
        echo $? >status
    ) 2>/dev/null &
    runner=$!
    until [ -s pid ]; do sleep 0.01; done
    starter=$(cat pid)
    case $phase in
    train) wait_rows 1 ;;
    end) wait_rows $((steps - 2)) ;;
    esac
    sleep "$delay"
    pid=$(find_process "$whom")
    [ -n "$pid" ] && kill -s "$signal" "$pid" 2>/dev/null && state=hit || state=missed
    begin=$(now)
    tries=0
    while [ -n "$(alive)" ] && [ $tries -lt 300 ]; do
        # Who stopped the starter continues it when the rest is over.
        if [ "$signal.$whom" = STOP.starter ] && [ "$(alive)" = "$starter" ]; then
            kill -s CONT "$starter"
        fi
        sleep 0.1
        tries=$((tries + 1))
        [ $tries -lt $((10 * (limit + 15))) ] || break
    done
    took=$(since "$begin")
    faults=
    [ -n "$(alive)" ] || wait $runner # which writes the status
    # A run that is not ended by what was done to it takes its own time.
    case $signal.$whom in STOP.starter | STOP.keeper) [ $tries -ge 190 ] || took=0 ;; esac
    check_hit
}

check_hit() {
    result=$(cat status 2>/dev/null || echo none)
    if [ "$result" = none ]; then
        left=$(alive)
        kill -s KILL $left $starter 2>/dev/null
        wait $runner
        fault 'the starter did not end'
    fi
    wait $runner 2>/dev/null
    check_result
    check_words
    printf '%4d %2d ranks  %-5s +%4s s  %-4s %-8s %-6s status %3s  %5s s  %s\n' "$number" "$ranks" \
        "$phase" "$delay" "$signal" "$whom" "$state" "$result" "$took" "${faults#; }"
    if [ -z "$faults" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        sed 's/^/       | /' err
    fi
}

draws=$(awk -v seed="$seed" -v count="$count" '
    function draw(n) { return int(rand() * n) }
    BEGIN {
        srand(seed)
        split("2 2 3 4 4 6 8", sizes); split("start start train train end", phases)
        split("KILL KILL STOP INT TERM", signals)
        for (i = 0; i < count; i++) {
            n = sizes[1 + draw(7)]; phase = phases[1 + draw(5)]; signal = signals[1 + draw(5)]
            who = draw(8)
            whom = who == 0 ? "starter" : who == 1 ? "keeper" : who < 4 ? "mpirun" : "rank" draw(n)
            most = phase == "start" ? 0.9 : phase == "train" ? 0.6 : 0.2
            printf "%d:%s:%.2f:%s:%s\n", n, phase, rand() * most, signal, whom
        }
    }')
number=0
for draw in $draws; do
    number=$((number + 1))
    # shellcheck disable=SC2046 # five words
    hit $(echo "$draw" | tr ':' ' ')
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
