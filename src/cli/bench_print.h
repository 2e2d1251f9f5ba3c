/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_print.h
 * Reports of `tessera bench` on standard output: for people, and as JSON.
 */
#pragma once

#include "bench/bench.h"

tsr_status tsri_bench_print_gemm(const tsri_bench_gemm_report *report);
tsr_status tsri_bench_print_coll(const tsri_bench_coll_report *report);
tsr_status tsri_bench_print_step(const tsri_bench_step_report *report);
tsr_status tsri_bench_print_probe(const tsri_bench_probe_report *report);

tsr_status tsri_bench_json_gemm(const tsri_bench_gemm_report *report);
tsr_status tsri_bench_json_coll(const tsri_bench_coll_report *report);
tsr_status tsri_bench_json_step(const tsri_bench_step_report *report);
tsr_status tsri_bench_json_probe(const tsri_bench_probe_report *report);
