#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Copyright The Tessera authors
#
# test_bench.sh PROGRAM: tessera bench as a user calls it, with the least work it can do.
program=$1
command=bench
. "$(dirname "$0")/harness.sh"

start 0 gemm --preset llama-tiny --tokens 16 --rounds 1 --threads 1
has out '^matrix products of llama-tiny, 16 tokens, 1 thread'
has out '^f32 +square 2048 +[1-9]'
has out '^libraries in f32: oneDNN, BLIS( not installed)?, OpenBLAS( not installed)?;'
has out '^q, o, head +forward +f32 +16 +256 +256 .* (oneDNN|BLIS|OpenBLAS) +[0-9]+[.][0-9]{2}$'
start 0 gemm --preset llama-tiny --tokens 16 --rounds 1 --json
has out '"square_flops_per_s": [1-9]'
has out '"pass": "wgrad"'
has out '"library": "oneDNN"'
has out '"best": "(oneDNN|BLIS|OpenBLAS)"'
has out '"ours_by_best": [0-9]'
lacks out ': 0\.0+,?$'

start 0 collectives -n 2 --bytes 1k,64k --rounds 1
has out '^collectives over 2 ranks'
has out '^reduce_scatter +64\.0 KiB '
start 0 collectives -n 2 --bytes 1k --rounds 1 --json
has out '"mpi_by_ours": [0-9]'
lacks out ': 0\.0+,?$'

start 0 step --preset llama-tiny --batch 2 --seq 16 --steps 1
has out '^llama-tiny, 3082496 parameters, f32; mesh shard=1, hsdp; 1 rank '
has out '^  matmul '
start 0 step -n 2 --mesh tp=2 --preset llama-tiny --batch 2 --seq 16 --steps 1 --json
has out '"mesh": "tp=2"'
has out '"tokens_per_s": [1-9]'

start 0 probe -n 2 --preset llama-tiny --batch 2 --seq 16 --seconds 0.2 --out "$folder/here.yaml"
has out '^2 ranks of [0-9]+ threads? on 1 host, all measuring at once, twice'
has out '^matmul +GFLOP/s +[0-9]'
has out '^all_reduce +local +2 +1\.0 KiB'
has out '^the two are at most a factor [0-9.]+ apart'
has here.yaml '^kernels: .*matmul: [0-9]'
start 0 probe --preset llama-tiny --batch 2 --seq 16 --seconds 0.2 --json
has out '"hash": "[0-9a-f]{16}"'
start 2 probe --seconds 0
has err '--seconds 0'
start 2 gemm --out x
has err '--out is not for bench gemm'

start 2 speed
has err 'gemm, collectives, step or probe'
start 2
start 2 gemm --mesh shard=1
has err '--mesh is not for bench gemm'
start 2 gemm -n 2
has err 'one rank'
start 2 collectives
has err 'at least 2 ranks'
start 2 collectives -n 2 --bytes 1q
has err '--bytes 1q'
start 2 collectives -n 2 --bytes 1k,
start 2 step --dtype f64
has err 'f32 or bf16'
start 2 step --steps 0
has err '--steps 0'
start 2 step -n 2 --mesh shard=3
has err 'shard=3'
start 2 step --preset llama-tniy
has err 'llama-tiny'

# compare STATUS words...: bench/compare_torch.sh
compare() {
    case_name="compare_torch.sh $*"
    wanted=$1
    shift
    "$(dirname "$0")/../../bench/compare_torch.sh" --program "$program" "$@" \
        >"$folder/out" 2>"$folder/err"
    got=$?
    [ $got = "$wanted" ] || complain "exit status $got, wants $wanted"
}

compare 0 --help
has out '^ *--python PY '
compare 2 --baseline "$folder/none"
has err "no baseline $folder/none; .*--baseline"
compare 2 --baseline "$0" --python "$folder/none"
has err "no $folder/none; .*--python"
compare 2 --baseline "$0" --python false
has err 'false has no torch; .*TORCH_PYTHON'
compare 2 --pairs
has err '^compare_torch.sh: --pairs wants a value'

finish
