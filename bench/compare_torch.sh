#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# A training step of Tessera beside the same step of PyTorch, on this machine, in one run.
#
# compare_torch.sh [options]
#   --python PY        a Python with torch; default: $TORCH_PYTHON, else python3
#   --baseline FILE    PyTorch's program; default: ../shared/baselines/torch_fsdp_cpu.py, seen from
#                      the top of this tree
#   --program FILE     tessera; default: $TESSERA, else build/tessera
#   --cases LIST       of the cases below; default: all
#   --pairs N          alternations, at least 3; default: 3
#   --steps N          steps of a run, of which the first does not count; default: 6
#   --model NAME       this model in every case, whose goals then do not hold
#   --clock NAME       wall; or cpu: tokens by processor second of all ranks, which other load on the
#                      machine does not change, and in which idling does not count; default: wall.
#                      single then has 1 thread, as waiting threads spin
#   --json             one JSON object instead of the table
#
# Both compute in f32. The cases, each of one thread a rank but single:
#
#   single    llama-25m, 8 x 256 tokens a step, 1 process of 2 threads
#   hsdp      llama-25m, 8 x 256, 4 ranks: replicate 2 x shard 2
#   fsdp_tp   llama-25m, 8 x 256, 4 ranks: shard 2 x tp 2
#   tp        llama-25m, 8 x 256, 2 ranks: tp 2
#   hsdp_tp   llama-25m, 8 x 256, 8 ranks: replicate 2 x shard 2 x tp 2
#   gpt2      gpt2-124m, 4 x 64, 4 ranks: replicate 2 x shard 2
#
# Runs alternate, so that other load on the machine meets both; but where Linux shares cores out by
# session (sched_autogroup_enabled), PyTorch's ranks, each a session, get more of a busy machine, and
# only --clock cpu compares then. Figures are medians, the ratio is the median of the pairs' ratios.
# With tp, PyTorch's program does not clip gradients; Tessera does.
#
# Exit status: 0, or 2 if torch, the baseline or tessera is missing, or 1 if a run failed.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
python=${TORCH_PYTHON:-python3}
baseline=$top/../shared/baselines/torch_fsdp_cpu.py
program=${TESSERA:-$top/build/tessera}
cases=single,hsdp,fsdp_tp,tp,hsdp_tp,gpt2
pairs=3
steps=6
model=
clock=wall
json=no

usage() {
    echo "compare_torch.sh: $1" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
    --json)
        json=yes
        shift
        continue
        ;;
    --help)
        sed -n '5,/^set -eu/{/^set -eu/d;s/^# \{0,1\}//;p}' "$0"
        exit 0
        ;;
    esac
    [ $# -gt 1 ] || usage "$1 wants a value, or is no option; see --help"
    case $1 in
    --python) python=$2 ;;
    --baseline) baseline=$2 ;;
    --program) program=$2 ;;
    --cases) cases=$2 ;;
    --pairs) pairs=$2 ;;
    --steps) steps=$2 ;;
    --model) model=$2 ;;
    --clock) clock=$2 ;;
    *) usage "no option $1; see --help" ;;
    esac
    shift 2
done

[ -x "$program" ] || usage "no program $program; build it, or name it with --program"
[ -f "$baseline" ] || usage "no baseline $baseline; name PyTorch's program with --baseline"
command -v "$python" >/dev/null 2>&1 || usage "no $python; name a Python with --python"
"$python" -c 'import torch' 2>/dev/null ||
    usage "$python has no torch; name one that has with --python or TORCH_PYTHON"
[ "$pairs" -ge 3 ] 2>/dev/null || usage "--pairs $pairs: wants at least 3"
[ "$steps" -ge 2 ] 2>/dev/null || usage "--steps $steps: wants at least 2"

case $clock in
wall) single_threads=2 ;;
cpu) single_threads=1 ;;
*) usage "--clock $clock: wants wall or cpu" ;;
esac

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# PyTorch's program reads time.perf_counter; for cpu it is given the clock of its process.
cat >"$folder/clocked.py" <<'PY'
import runpy
import sys
import time

clock, program = sys.argv[1:3]
del sys.argv[:2]
if clock == "cpu":
    time.perf_counter = time.process_time
runpy.run_path(program, run_name="__main__")
PY

# describe CASE: sets its model, ranks, threads, mesh, the batch of the job and that of a
# data-parallel rank, the tokens of a sequence and PyTorch's name of the layout.
describe() {
    preset=llama-25m ranks=4 threads=1 batch=8 seq=256
    case $1 in
    single) layout=single mesh=shard=1 ranks=1 threads=$single_threads share=8 ;;
    hsdp) layout=hsdp mesh=replicate=2,shard=2 share=2 ;;
    fsdp_tp) layout=fsdp_tp mesh=shard=2,tp=2 share=4 ;;
    tp) layout=tp mesh=tp=2 ranks=2 share=8 ;;
    hsdp_tp) layout=hsdp_tp mesh=replicate=2,shard=2,tp=2 ranks=8 share=2 ;;
    gpt2) layout=hsdp mesh=replicate=2,shard=2 preset=gpt2-124m batch=4 seq=64 share=1 ;;
    *) usage "--cases: no case $1; wants single, hsdp, fsdp_tp, tp, hsdp_tp or gpt2" ;;
    esac
    preset=${model:-$preset}
}

# PyTorch's program is told the batch of a data-parallel rank, Tessera that of the job.
torch_run() {
    set -- "$folder/clocked.py" "$clock" "$baseline" --layout "$layout" --batch "$share" \
        --seq "$seq" --steps "$steps" --model "$preset"
    if [ "$ranks" = 1 ]; then
        OMP_NUM_THREADS=$threads "$python" "$@"
    else
        OMP_NUM_THREADS=$threads "$python" -m torch.distributed.run --standalone \
            --nproc-per-node "$ranks" "$@"
    fi
}

tessera_run() {
    "$program" bench step --preset "$preset" --batch "$batch" --seq "$seq" --steps $((steps - 1)) \
        --json -n "$ranks" --threads "$threads" --mesh "$mesh"
}

# run SIDE CASE NUMBER
run() {
    side=$1
    name=$2
    out=$folder/$name.$side.$3
    case $side in
    torch) torch_run >"$out" 2>"$folder/err" ;;
    tessera) tessera_run >"$out" 2>"$folder/err" ;;
    esac || {
        echo "compare_torch.sh: $side failed on $name:" >&2
        tail -20 "$folder/err" >&2
        exit 1
    }
}

for name in $(echo "$cases" | tr , ' '); do
    describe "$name"
done
for name in $(echo "$cases" | tr , ' '); do
    describe "$name"
    i=0
    while [ "$i" -lt "$pairs" ]; do
        run torch "$name" "$i"
        run tessera "$name" "$i"
        i=$((i + 1))
    done
done

"$python" - "$folder" "$cases" "$pairs" "$json" "$model" "$clock" <<'PY'
import json, statistics, sys

folder, cases, pairs, as_json, model, clock = sys.argv[1:]


def read(side, case, i):
    with open(f"{folder}/{case}.{side}.{i}") as file:
        text = file.read()
    # PyTorch's program prints one line of JSON, perhaps among others.
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(text if side == "tessera" else lines[-1])


def torch_rate(run):
    # By its process's clock, a rank's time; ranks take as long as each other.
    return run["tokens_s"] / (run["world"] if clock == "cpu" else 1)


def tessera_rate(run):
    if clock == "wall":
        return run["tokens_per_s"]
    seconds = (run["time"]["user_s"] + run["time"]["system_s"]) * run["ranks"]
    return run["batch"] * run["seq"] / seconds


goals = {"single": 1.25, "hsdp": 1.8, "fsdp_tp": 2.0, "tp": 1.5, "hsdp_tp": 2.5, "gpt2": 4.0}
rows = []
for case in cases.split(","):
    runs = [(read("torch", case, i), read("tessera", case, i)) for i in range(int(pairs))]
    theirs = [torch_rate(t) for t, _ in runs]
    ours = [tessera_rate(o) for _, o in runs]
    ratios = [o / t for t, o in zip(theirs, ours)]
    rows.append({
        "case": case, "model": runs[0][1]["model"], "ranks": runs[0][1]["ranks"], "threads": runs[0][1]["threads"],
        "tokens_per_step": runs[0][1]["batch"] * runs[0][1]["seq"],
        "torch_tokens_per_s": statistics.median(theirs),
        "tessera_tokens_per_s": statistics.median(ours),
        "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        "goal": None if model else goals[case], "of_ceiling": statistics.median(o["of_ceiling"] if clock == "wall" else
                                        o["flops_per_cpu_s_6n"] / o["ceiling_flops_per_cpu_s"]
                                        for _, o in runs),
    })
if as_json == "yes":
    print(json.dumps({"dtype": "f32", "clock": clock, "pairs": int(pairs), "cases": rows}, indent=2))
    sys.exit()
print(f"f32, tokens by {clock} second; medians of {pairs} alternating runs\n")
print(f"{'case':<9}{'model':<11}{'ranks':>6}{'threads':>8}{'torch':>9}{'tessera':>9}{'ratio':>7}"
      f"{'least':>7}{'most':>7}{'goal':>6}{'of ceiling':>12}")
for r in rows:
    print(f"{r['case']:<9}{r['model']:<11}{r['ranks']:>6}{r['threads']:>8}{r['torch_tokens_per_s']:>9.0f}"
          f"{r['tessera_tokens_per_s']:>9.0f}{r['ratio']:>7.2f}{r['ratio_min']:>7.2f}"
          f"{r['ratio_max']:>7.2f}{r['goal'] or '':>6}{100 * r['of_ceiling']:>11.1f}%")
PY
