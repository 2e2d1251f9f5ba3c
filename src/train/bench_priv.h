/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of bench: medians, the matmul and what bounds it. */
#pragma once

#include "comm/comm.h"
#include "train/bench.h"

enum {
    BENCH_SIDE = 2048 /* of the square matmul that bounds the others */
};

/** Median of values[count], which is sorted; count >= 1. */
double tsri_bench_median(double *values, int count);

/** A comm of one axis over all ranks of the world. */
tsr_status tsri_bench_open_comm(tsr_world *world, tsr_mesh **mesh_out, tsr_comm **comm_out);

/** Processor seconds so far of the threads of a team; not of the process, whose clock is behind for
 *  threads that run on other cores. */
double tsri_bench_team_s(int threads);

/** Flops per second on the wall's clock, and by processor time: those of a processor second, times
 *  threads. Equal on an idle machine; the second holds on a busy one too. */
typedef struct bench_rate {
    double wall, cpu;
} bench_rate;

/** Multiply-adds per second of threads threads on registers alone, in the widest instructions that
 *  the processor has for dtype; *name_out is theirs, NULL: it has none. Blocks some 10 ms. */
bench_rate tsri_bench_peak(tsr_dtype dtype, int threads, const char **name_out);

/** A matmul on buffers of its own. */
typedef struct bench_matmul {
    tsr_comm *comm;
    tsr_buffer *a, *b, *c, *workspace;
    tsrk_matmul args; /* without addresses */
} bench_matmul;

/** c [m, n] = op(a) op(b), all contiguous in dtype. Closing is needed also after a failure. */
tsr_status tsri_bench_matmul_open(tsr_comm *comm, tsr_dtype dtype, const int64_t mnk[3],
                                  bool trans_a, bool trans_b, bench_matmul *out);
/** Run once. Blocks. */
tsr_status tsri_bench_matmul_run(bench_matmul *m, bench_rate *rate_out);
void tsri_bench_matmul_close(bench_matmul *m);
