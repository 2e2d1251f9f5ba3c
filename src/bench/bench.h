/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench.h
 * Measurements of this machine and of Tessera on it, side by side in one run.
 *
 * What is compared is measured alternately, A B A B, so that other load on the machine meets both
 * alike. A figure is the median over rounds, a share the median of the shares of each round.
 * Seconds, bytes and flops per second; a figure that was not measured is left out by whoever
 * prints, never 0.
 *
 * Threads: one thread at a time.
 */
#pragma once

#include "bench/probe.h"
#include "config/mesh_text.h"
#include "job/job.h"

enum {
    TSRI_BENCH_MAX_GEMMS = 64,
    TSRI_BENCH_LIBRARIES = 3,
    TSRI_BENCH_MAX_SIZES = 16,
    TSRI_BENCH_MAX_COLLS = 3 * TSRI_BENCH_MAX_SIZES,
    TSRI_BENCH_NAME_BYTES = 48,
    TSRI_BENCH_MAX_ROUNDS = 31,
    TSRI_BENCH_MAX_STEPS = 1000,
    TSRI_BENCH_CLUSTER_BYTES = 8192
};

/** Median of values[count], which is sorted; count >= 1. */
double tsri_bench_median(double *values, int count);

/* ---- gemm: matrix products of a model ---- */

typedef struct tsri_bench_gemm_options {
    const char *model; /* of tsri_model_preset; NULL: llama-25m */
    int64_t tokens;    /* 0: 2048 */
    int rounds;        /* 0: 5 */
} tsri_bench_gemm_options;

/** What a device can do in one dtype. */
typedef struct tsri_bench_ceiling {
    tsr_dtype dtype;
    const char *instructions; /* of the peak, "avx512f"; NULL: peak was not measured */
    double peak;              /* multiply-adds on registers alone */
    double square;            /* our matmul of side x side matrices */
    double square_of_peak;    /* where the peak was measured; by processor time, as below */
    int64_t side;
} tsri_bench_ceiling;

/** Another library's own call for a product, f32. */
typedef struct tsri_bench_gemm_library {
    double rate; /* flops per second; 0: not measured */
    double ours; /* our rate by its: by processor time for one thread, else on the wall's clock */
} tsri_bench_gemm_library;

typedef struct tsri_bench_gemm_row {
    char weights[TSRI_BENCH_NAME_BYTES]; /* "q, o" */
    const char *pass;                    /* "forward", "dgrad", "wgrad" */
    tsr_dtype dtype;
    int64_t m, n, k;
    double rate;               /* flops per second */
    double of_square, of_peak; /* shares by processor time, which other load on the machine does
                                  not change; of_peak where the peak was measured */
    tsri_bench_gemm_library library[TSRI_BENCH_LIBRARIES];
    int best; /* the one with the least ours; -1: none */
} tsri_bench_gemm_row;

typedef struct tsri_bench_gemm_report {
    const char *model;
    int64_t tokens;
    int threads;
    int ceiling_count; /* f32, and bf16 where the device computes in it */
    tsri_bench_ceiling ceiling[2];
    const char *library_name[TSRI_BENCH_LIBRARIES];
    bool library_found[TSRI_BENCH_LIBRARIES]; /* on this machine */
    int row_count;
    tsri_bench_gemm_row rows[TSRI_BENCH_MAX_GEMMS];
} tsri_bench_gemm_report;

/** Local: a world of one rank. */
tsr_status tsri_bench_gemm(tsr_world *world, const tsri_bench_gemm_options *options,
                           tsri_bench_gemm_report *out);

/* ---- collectives ---- */

typedef struct tsri_bench_coll_options {
    size_t bytes[TSRI_BENCH_MAX_SIZES]; /* of the whole tensor */
    int size_count;
    int rounds; /* 0: 7 */
} tsri_bench_coll_options;

/** A way to do it, inputs and outputs apart. Bandwidths as usual: algorithm = bytes / s; bus =
 * algorithm x (W-1)/W, for all_reduce x 2(W-1)/W, which is what a rank must receive at least. */
typedef struct tsri_bench_coll_side {
    double s, algorithm, bus;
} tsri_bench_coll_side;

typedef struct tsri_bench_coll_row {
    tsri_coll_kind kind;
    size_t bytes; /* of the whole tensor, as measured: a multiple of W elements */
    tsri_bench_coll_side ours, mpi;
    double speedup; /* time by messages, by time through memory */
    double of_copy; /* ours: by the time in which each rank of all copies what it has to move */
} tsri_bench_coll_row;

typedef struct tsri_bench_coll_report {
    int ranks;
    double copy_one; /* bytes copied per second by one rank while the others sleep */
    double copy_all; /* by each rank while all copy */
    int row_count;
    tsri_bench_coll_row rows[TSRI_BENCH_MAX_COLLS];
} tsri_bench_coll_report;

/** Collective over the world, which has at least two ranks. Every rank gets the same report. */
tsr_status tsri_bench_collectives(tsr_world *world, const tsri_bench_coll_options *options,
                                  tsri_bench_coll_report *out);

/* ---- step: a training step ---- */

typedef struct tsri_bench_step_options {
    const char *model;  /* NULL: llama-25m */
    const char *mesh;   /* NULL: every rank on "shard" */
    const char *preset; /* NULL: hsdp */
    tsr_dtype dtype;    /* of parameters in compute; 0: f32 */
    int64_t batch, seq; /* 0: 8 sequences over the whole job, of 256 tokens */
    int steps;          /* measured ones; 0: 10 */
} tsri_bench_step_options;

typedef struct tsri_bench_kernel {
    const char *name;
    double s, calls; /* per step */
} tsri_bench_kernel;

/** Figures from user_s on are means over ranks and steps. */
typedef struct tsri_bench_step_report { /* lint: the printed table, figure by figure */
    const char *model, *preset;
    char mesh[192];
    tsr_dtype dtype;
    int ranks, threads, steps;
    int64_t params, batch, seq;
    double step_s, min_s; /* median, least */
    double tokens_per_s;
    double rate;    /* 6 x params x tokens per step / step_s */
    double ceiling; /* of all ranks at once, in our matmul of side x side f32 matrices */
    int64_t side;
    double user_s, system_s, faults, switches; /* of a rank in a step; voluntary switches */
    double cpu_rate;    /* the same flops by processor seconds of all ranks: other load does not
                           count, nor does idling */
    double cpu_ceiling; /* flops of the square matmul by processor seconds, mean over ranks */
    double kernel_s, matmul_s; /* on the compute stream: all kernels, those that are matmul */
    double coll_s;             /* collectives on the compute stream */
    double exposed_s[TSRI_STREAM_COUNT]; /* compute waited for this stream */
    double busy_s[TSRI_STREAM_COUNT];    /* first to last step of the stream's operations */
    double other_s;                      /* host work between operations, and waking up */
    int kernel_count;
    tsri_bench_kernel kernels[TSRK_COUNT]; /* of the compute stream, longest first */
} tsri_bench_step_report;

/** Local. The job whose steps are measured; out borrows the names in mesh. */
tsr_status tsri_bench_step_job(const tsri_bench_step_options *options, int ranks,
                               tsri_mesh_text *mesh, tsri_job_options *out);
/** Local. What can be seen before ranks start, by a dry run as one of ranks ranks. */
tsr_status tsri_bench_step_check(const tsri_bench_step_options *options, int ranks);
/** Collective over the world. Every rank gets the same report, but for the table of kernels, which
 *  is its own. */
tsr_status tsri_bench_step(tsr_world *world, const tsri_bench_step_options *options,
                           tsri_bench_step_report *out);

/* ---- probe: the machine as a cluster ---- */

typedef struct tsri_bench_probe_report {
    tsri_probe_report first, second;
    double factor;                       /* by which they differ at most in one figure, */
    const char *apart;                   /* which is this */
    char text[TSRI_BENCH_CLUSTER_BYTES]; /* the first as a cluster file */
    uint64_t hash;                       /* of it */
} tsri_bench_probe_report;

/**
 * Probe the machine twice for jobs as options describe. Collective over the world.
 *
 * @param threads  of a rank; 0: cores / local ranks.
 * @param seconds  of both together, about.
 * @param path     File to write text to; NULL: none.
 */
tsr_status tsri_bench_probe(tsr_world *world, const tsri_bench_step_options *options, int threads,
                            double seconds, const char *path, tsri_bench_probe_report *out);
