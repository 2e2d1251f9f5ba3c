#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_launch.sh PROGRAM: what a user sees of jobs that go well and of jobs that do not. PROGRAM is
# built from ranks.c.
set -u
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset OMP_NUM_THREADS GOMP_SPINCOUNT OMP_WAIT_POLICY
passed=0
failed=0
case_name=

# start STATUS SECONDS words...: run; the exit status and the time must be right.
start() {
    case_name="$*"
    wanted=$1 limit=$2
    shift 2
    begin=$(date +%s)
    timeout -k 5 60 "$program" "$@" >"$folder/out" 2>"$folder/err"
    got=$?
    took=$(($(date +%s) - begin))
    same "exit status" "$wanted" "$got"
    [ "$took" -le "$limit" ] || complain "took $took s, wants at most $limit"
    passed=$((passed + 1))
    # Whatever happens, Open MPI does not speak to our user.
    none err '-----'
    none err 'mpirun noticed|MPI_ABORT|Primary job|help message'
}

complain() {
    echo "FAIL [$case_name]: $1"
    sed 's/^/    out| /' "$folder/out"
    sed 's/^/    err| /' "$folder/err"
    failed=$((failed + 1))
}
same() { [ "$2" = "$3" ] || complain "$1: wants $2, is $3"; }
count() { same "lines of $1 with $2" "$3" "$(grep -cE -e "$2" "$folder/$1")"; }
none() { count "$1" "$2" 0; }
empty() { [ ! -s "$folder/$1" ] || complain "$1 is not empty"; }

# ---- before any rank starts ----
start 2 5
count err 'usage: tessera COMMAND' 1
start 0 5 --version
count out '^tessera [0-9]+\.[0-9]+\.[0-9]+$' 1
start 0 5 --help
count out 'checked +looks at its word beforehand' 1
start 0 5 help checked
count out 'usage: tessera checked WORD' 1
count out '--mesh SPEC +a mesh' 1
start 0 5 checked --help
count out 'run as N ranks' 1
start 2 5 chekced good
count err '^tessera: no command "chekced"; nearest: checked' 1
start 2 5 help chekced
count err 'nearest: checked' 1
start 2 5 checked good --mehs x
count err '^tessera: checked has no option --mehs; nearest: --mesh' 1
start 2 5 checked good --mesh
count err '^tessera: --mesh wants a value: SPEC' 1
start 2 5 checked good --json=yes
count err '^tessera: --json takes no value' 1
start 2 5 checked
count err '^tessera: usage: tessera checked WORD' 1
start 2 5 checked good -n 0
count err '^tessera: -n 0: wants a number of ranks' 1
start 2 5 checked good -n 3x
count err '^tessera: -n 3x' 1
start 2 5 checked good --hosts 'a:0'
count err '^tessera: --hosts: "a:0" is not' 1
start 2 5 checked good --hosts 'a;reboot'
count err '^tessera: --hosts' 1
start 2 5 checked good -n 9 --hosts a:4,b:4
count err '^tessera: -n 9, but --hosts a:4,b:4 has room for 8' 1
start 2 5 checked bad -n 3
same 'the one line' 'tessera: word "bad", wants "good"; 3 ranks' "$(cat "$folder/err")"
empty out

PATH_BEFORE=$PATH
mkdir "$folder/bin"
for tool in timeout date grep sed cat; do
    ln -s "$(command -v $tool)" "$folder/bin/$tool"
done
PATH="$folder/bin"
start 2 5 hello -n 2
count err '^tessera: -n needs Open MPI.s mpirun.*apt-get install openmpi-bin' 1
PATH=$PATH_BEFORE

# Settings of Open MPI: ours, but for those that the environment has.
printf '#!/bin/sh\necho "$@"\n' >"$folder/bin/mpirun"
chmod +x "$folder/bin/mpirun"
PATH="$folder/bin:$PATH_BEFORE"
export OMPI_MCA_oob_tcp_keepalive_time=9
start 0 5 hello -n 2 --hosts a:1,b:1
count out '--host a:1,b:1 ' 1
count out '--mca btl self,vader,tcp ' 1
count out '--mca oob_tcp_keepalive_intvl 2 --mca oob_tcp_keepalive_probes 2 ' 1
none out 'oob_tcp_keepalive_time'
unset OMPI_MCA_oob_tcp_keepalive_time
start 0 5 hello -n 2 --hosts a:1,b:1
count out '--mca oob_tcp_keepalive_time 3 ' 1
PATH=$PATH_BEFORE

# ---- jobs that go well ----
start 0 20 hello word
same 'output' 'hello 0/1 word' "$(cat "$folder/out")"
start 0 20 hello -n 1
count out 'hello 0/1 -' 1
start 0 20 checked good -n 3 --mesh a=3
count out '^hello [0-2]/3 good$' 3
count err '^note [0-2]$' 3
start 0 20 hello -n2
count out '^hello [01]/2 -$' 2
start 0 20 threads -n 2
count out '^omp unset$' 2
# Threads spin briefly, unless the user says how long.
count out '^spin 1000$' 2
start 0 20 threads
count out '^spin 1000$' 1
export GOMP_SPINCOUNT=77
start 0 20 threads -n 2
count out '^spin 77$' 2
unset GOMP_SPINCOUNT
export OMP_WAIT_POLICY=passive
start 0 20 threads
count out '^spin unset$' 1
unset OMP_WAIT_POLICY

# ---- jobs that do not ----
start 1 20 fail 0
count err 'rank 0/1. ERR_IO: rank 0 has no disk' 1
start 1 20 fail 2 -n 4
count err '^.rank 2/4. ERR_IO: rank 2 has no disk$' 1
count err '#0 do_fail ' 1
none err 'REMOTE|tessera:'
start 1 20 fail_all -n 3
count err '^.rank 0/3. ERR_SHAPE: nothing fits$' 1
none err 'rank [12]/3'
start 1 20 fail_alone 1 -n 3
count err '^.rank 1/3. ERR_NOMEM: rank 1 is full$' 1
none err 'rank [02]/3'
start 1 20 differ 2 -n 3
count err 'ERR_DISAGREE: the config differs between ranks 0 and 2 at character 4: "lr: 4" and "lr: 5"' 1
start 1 20 die 1 -n 3
same 'the one line' \
    "tessera: rank 1 on host $(hostname) was killed by signal 9 (Killed); the job was ended" \
    "$(cat "$folder/err")"
start 1 20 exit_two 1 -n 3
same 'the one line' 'tessera: rank 1 exited with status 2; the job was ended' \
    "$(grep -v 'lost connection' "$folder/err")"
start 0 20 worlds -n 2
start 1 20 two 2 -n 2
empty err
start 1 20 two 2
start 0 20 two 0 -n 2

# ---- a rank stops: who, where, within 1 s and what it takes to end ----
for victim in 0 2; do
    start 1 9 stop_work $victim -n 3
    count err "^.rank [0-2]/3. ERR_COMM: rank $victim on host [^ ]+ did not come to .measuring the weather. within 1 s: rank $victim .process [0-9]+. is stopped" 1
done
start 1 9 stop_start 1 -n 3
count err '^.rank [02]/3. ERR_COMM: waited 1 s .* in the start of MPI .*: rank 1 .process [0-9]+. is stopped' 1
start 1 9 stop_end 1 -n 2
count err '^.rank 0/2. ERR_COMM: rank 1 on host [^ ]+ did not come to .the end of the job. within 1 s: rank 1 .process [0-9]+. is stopped' 1

# ---- ended by a signal, or by the end of a process of the job ----

# background words...: start a job in whose ranks nothing ends, and wait until they say so.
background() {
    case_name="$*"
    timeout -k 5 60 "$program" "$@" >"$folder/out" 2>"$folder/err" &
    runner=$!
    tries=0
    until [ "$(grep -o 'waiting' "$folder/err" | wc -l)" = 2 ] || [ $tries -ge 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ $tries -lt 100 ] || complain 'the unfinished lines were not shown'
    launcher=$(ps -o pid= --ppid $runner | tr -d ' ')
    keeper=$(ps -o pid= --ppid "$launcher" | tr -d ' ')
    mpirun=$(ps -o pid= --ppid "$keeper" | tr -d ' ')
    ranks=$(ps -o pid= --ppid "$mpirun" | tr -d ' ')
    shared=$(tr '\0' '\n' <"/proc/$mpirun/cmdline" | grep '^/dev/shm/tessera-' | head -n 1)
    [ -d "$shared" ] || complain "no folder in shared memory: $shared"
    begin=$(date +%s)
}

# ended STATUS SECONDS: the job is over, and nothing is left of it.
ended() {
    wait $runner
    same 'exit status' "$1" $?
    took=$(($(date +%s) - begin))
    [ $took -le "$2" ] || complain "took $took s to end"
    none err '-----'
    for pid in $launcher $keeper $mpirun $ranks; do
        if [ -d "/proc/$pid" ] && ! grep -q 'State:.Z' "/proc/$pid/status"; then
            complain "process $pid is left"
        fi
    done
    [ ! -e "$shared" ] || complain "$shared is left"
    passed=$((passed + 1))
}

for signal in INT:130 TERM:143 HUP:129; do
    background wait_long -n 2
    kill -s ${signal%:*} "$launcher"
    ended ${signal#*:} 8
    count err 'tessera: .*; the job was ended$' 1
done
# mpirun ignores the first signal, because it is stopped; the second ends everything at once.
background wait_long -n 2
kill -s STOP "$mpirun"
kill -s INT "$launcher"
kill -s INT "$launcher"
ended 130 4
background wait_long -n 2
kill -s KILL "$mpirun"
ended 1 6
count err "tessera: mpirun .process $mpirun. was killed by signal 9 .Killed.; the job was ended$" 1
background wait_long -n 2
kill -s KILL "$launcher"
tries=0
while [ -d "/proc/$keeper" ] && [ $tries -lt 80 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
ended 137 8

# ---- few open files ----
case_name='open files'
(
    ulimit -S -n 24
    "$program" hello -n 2 >"$folder/out" 2>"$folder/err"
)
same 'exit status' 0 $?
(
    ulimit -n 24
    "$program" hello -n 2 >"$folder/out" 2>"$folder/err"
)
same 'exit status' 2 $?
count err '^tessera: 2 ranks need some [0-9]+ open files, but the limit is 24: raise it with ulimit -n' 1
passed=$((passed + 2))

# ---- within somebody else's mpirun ----
case_name='under mpirun'
mpi="mpirun --oversubscribe --bind-to none --mca btl self,vader"
[ "$(id -u)" = 0 ] && mpi="$mpi --allow-run-as-root"
$mpi -n 2 "$program" hello >"$folder/out" 2>"$folder/err"
same 'exit status' 0 $?
count out '^hello [01]/2 -$' 2
$mpi -n 2 "$program" hello -n 2 >"$folder/out" 2>"$folder/err"
same 'exit status' 1 $?
count err '^tessera: -n and --hosts start a job, but this process is a rank' 1
$mpi -n 2 "$program" chekced >"$folder/out" 2>"$folder/err"
same 'exit status' 1 $?
count err '^tessera: no command "chekced"' 1
$mpi -n 1 "$program" hello : -n 1 "$program" chekced >"$folder/out" 2>"$folder/err"
same 'exit status' 1 $?
count err '^tessera: no command "chekced"; nearest: checked.*.rank 1 on host ' 1
passed=$((passed + 4))

echo "$passed passed, $failed failed"
[ $failed = 0 ]
