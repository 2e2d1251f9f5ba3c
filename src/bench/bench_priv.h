/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* Between the files of bench: medians, the matmul and what bounds it. */
#pragma once

#include "bench/bench.h"
#include "comm/comm.h"

enum {
    BENCH_SIDE = 2048 /* of the square matmul that bounds the others */
};

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

/** A library's product of f32 matrices: one of the two functions where it was found. */
typedef struct bench_library {
    const char *name;
    bool found;
    void *handle; /* of the loader */
    void (*cblas)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    int (*dnnl)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                int64_t ldc);
    double spin_s; /* its threads may keep cores busy for so long after a call */
} bench_library;

/** Open those that this machine has, each with threads threads. */
void tsri_bench_libraries_open(int threads, bench_library libraries[TSRI_BENCH_LIBRARIES]);
/** Run m, f32 on a device with host addresses, once, as one call of a library that was found. By
 *  processor time for one thread alone, else 0: the threads are the library's own. Blocks. */
bench_rate tsri_bench_library_run(const bench_library *library, const bench_matmul *m);
void tsri_bench_libraries_close(bench_library libraries[TSRI_BENCH_LIBRARIES]);
