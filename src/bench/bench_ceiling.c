/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_ceiling.c
 * What bounds a kernel on this machine: multiply-adds on registers, and our matmul of large square
 * matrices.
 *
 * The register loop keeps BENCH_CHAINS independent sums under way, more than latency times width of
 * any present core, and enough few that they stay in registers with their operands.
 */
#include "bench_priv.h"

#include "base/base.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#    include <immintrin.h>
#endif

#define CHAINS     12
#define LOOPS      2000000
#define PEAK_TRIES 3

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

double tsri_bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof(*values), compare_doubles);
    return count % 2 != 0 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

tsr_status tsri_bench_open_comm(tsr_world *world, tsr_mesh **mesh_out, tsr_comm **comm_out)
{
    const tsr_mesh_axis axis = {"shard", tsr_world_size(world)};
    tsr_mesh *mesh = NULL;
    tsr_status status = TSR_OK;

    TSR_TRY(tsr_mesh_create(tsr_world_size(world), &axis, 1, NULL, &mesh));
    TSR_TRY_GOTO(status, tsr_comm_open(world, mesh, NULL, comm_out), release);
    *mesh_out = mesh;
    return TSR_OK;
release:
    tsr_mesh_release(&mesh);
    return status;
}

/* ---- register loops: each returns something that depends on every sum ---- */

typedef float (*loop_fn)(float x);

typedef struct loop {
    const char *name;
    loop_fn fn;
    double flops; /* of one call */
} loop;

#if defined(__x86_64__)

__attribute__((target("avx512f"))) static float loop_avx512(float x)
{
    __m512 sum[CHAINS];
    const __m512 factor = _mm512_set1_ps(x);

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm512_set1_ps((float)i);
    }
    for (int n = 0; n < LOOPS; n++) {
#    pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_fmadd_ps(sum[i], factor, factor);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    }
    return _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx2,fma"))) static float loop_avx2(float x)
{
    __m256 sum[CHAINS];
    const __m256 factor = _mm256_set1_ps(x);
    float out[8];

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm256_set1_ps((float)i);
    }
    for (int n = 0; n < LOOPS; n++) {
#    pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm256_fmadd_ps(sum[i], factor, factor);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    }
    _mm256_storeu_ps(out, sum[0]);
    return out[0];
}

__attribute__((target("avx512f,avx512bf16"))) static float loop_bf16(float x)
{
    __m512 sum[CHAINS];
    const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(x), _mm512_set1_ps(x));

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = _mm512_set1_ps((float)i);
    }
    for (int n = 0; n < LOOPS; n++) {
#    pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = _mm512_dpbf16_ps(sum[i], factor, factor);
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    }
    return _mm512_reduce_add_ps(sum[0]);
}

#endif

/* Vectors of four, which every present instruction set has; multiply and add apart. */
static float loop_baseline(float x)
{
    typedef float vector __attribute__((vector_size(16)));
    const vector factor = {x, x, x, x};
    vector sum[CHAINS];

    for (int i = 0; i < CHAINS; i++) {
        sum[i] = factor * (float)i;
    }
    for (int n = 0; n < LOOPS; n++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) {
            sum[i] = (sum[i] * factor) + factor;
        }
    }
    for (int i = 1; i < CHAINS; i++) {
        sum[0] += sum[i];
    }
    return sum[0][0];
}

static loop find_loop(tsr_dtype dtype)
{
    const double steps = 2.0 * CHAINS * LOOPS; /* flops of one lane */
    loop found = {.name = NULL};

#if defined(__x86_64__)
    if (dtype == TSR_BF16 && tsri_isa_has_bf16()) {
        found = (loop){"avx512bf16", loop_bf16, steps * 32};
    } else if (dtype == TSR_F32 && tsri_isa_level() == TSRI_ISA_AVX512) {
        found = (loop){"avx512f", loop_avx512, steps * 16};
    } else if (dtype == TSR_F32 && tsri_isa_level() == TSRI_ISA_AVX2) {
        found = (loop){"avx2+fma", loop_avx2, steps * 8};
    }
#endif
    if (found.name == NULL && dtype == TSR_F32) {
        found = (loop){"vectors of 4", loop_baseline, steps * 4};
    }
    return found;
}

double tsri_bench_team_s(int threads)
{
    double sum = 0.0;

#pragma omp parallel num_threads(threads) reduction(+ : sum)
    {
        struct timespec t = {0};

        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        sum += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return sum;
}

bench_rate tsri_bench_peak(tsr_dtype dtype, int threads, const char **name_out)
{
    const loop l = find_loop(dtype);
    bench_rate best = {0.0, 0.0};

    *name_out = l.name;
    for (int try = 0; l.name != NULL && try < PEAK_TRIES; try++) {
        const double flops = l.flops * (double)threads;
        const double begin_cpu = tsri_bench_team_s(threads);
        const double begin = tsri_now_s();
        float sum = 0.0F;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
        sum += l.fn(1e-3F);
        const double wall = flops / (tsri_now_s() - begin);
        const double cpu = flops * threads / (tsri_bench_team_s(threads) - begin_cpu);

        /* Asks for the sum, or the compiler would leave the loop out. */
        best.wall = sum > 0.0F && wall > best.wall ? wall : best.wall;
        best.cpu = cpu > best.cpu ? cpu : best.cpu;
    }
    return best;
}

/* ---- matmul through the device's table ---- */

static tsr_status fill_matrix(tsr_comm *comm, tsr_buffer *buffer, tsr_dtype dtype)
{
    const size_t count = buffer->bytes / tsr_dtype_size(dtype);
    tsr_stream *stream = tsri_comm_stream(comm, TSRI_STREAM_COMPUTE);
    uint16_t *half = NULL;
    float *single = NULL;
    tsr_status status = TSR_OK;

    /* Small whole numbers: exact in any dtype, and no denormals, which are slow. */
    if (dtype == TSR_BF16) {
        TSR_TRY(tsri_alloc(count, sizeof(*half), &half));
        for (size_t i = 0; i < count; i++) {
            half[i] = (uint16_t)(i % 3 == 0 ? 0x3f80 : 0xbf80); /* 1, -1 */
        }
        status = tsri_write(buffer, 0, half, buffer->bytes, stream);
        tsri_free(&half);
    } else {
        TSR_TRY(tsri_alloc(count, sizeof(*single), &single));
        for (size_t i = 0; i < count; i++) {
            single[i] = i % 3 == 0 ? 1.0F : -1.0F;
        }
        status = tsri_write(buffer, 0, single, buffer->bytes, stream);
        tsri_free(&single);
    }
    if (status != TSR_OK) {
        return tsr_error_pass(status, __FILE__, __LINE__, __func__);
    }
    return TSR_OK;
}

tsr_status tsri_bench_matmul_open(tsr_comm *comm, tsr_dtype dtype, const int64_t mnk[3],
                                  bool trans_a, bool trans_b, bench_matmul *out)
{
    const int64_t m = mnk[0];
    const int64_t n = mnk[1];
    const int64_t k = mnk[2];
    const size_t unit = tsr_dtype_size(dtype);

    *out = (bench_matmul){.comm = comm};
    out->args = (tsrk_matmul){.m = m,
                              .n = n,
                              .k = k,
                              .lda = trans_a ? m : k,
                              .ldb = trans_b ? k : n,
                              .ldc = n,
                              .a_type = dtype,
                              .b_type = dtype,
                              .c_type = dtype,
                              .bias_type = dtype,
                              .trans_a = trans_a,
                              .trans_b = trans_b};
    TSR_TRY(tsri_comm_buffer(comm, (size_t)(m * k) * unit, TSRI_MEM_OTHER, "a", &out->a));
    TSR_TRY(tsri_comm_buffer(comm, (size_t)(k * n) * unit, TSRI_MEM_OTHER, "b", &out->b));
    TSR_TRY(tsri_comm_buffer(comm, (size_t)(m * n) * unit, TSRI_MEM_OTHER, "c", &out->c));
    TSR_TRY(tsri_comm_buffer(comm,
                             tsri_workspace_bytes(tsri_comm_device(comm), TSRK_MATMUL, &out->args),
                             TSRI_MEM_WORKSPACE, "workspace", &out->workspace));
    TSR_TRY(fill_matrix(comm, out->a, dtype));
    TSR_TRY(fill_matrix(comm, out->b, dtype));
    return TSR_OK;
}

tsr_status tsri_bench_matmul_run(bench_matmul *m, bench_rate *rate_out)
{
    tsri_call call = {.stream = tsri_comm_stream(m->comm, TSRI_STREAM_COMPUTE), .label = "bench"};
    tsrk_matmul args = m->args;
    const double flops = 2.0 * (double)args.m * (double)args.n * (double)args.k;
    const int threads = tsri_comm_device(m->comm)->threads;
    const double begin_cpu = tsri_bench_team_s(threads);
    const double begin = tsri_now_s();

    args.a = tsri_arg_in(&call, m->a, 0, m->a->bytes);
    args.b = tsri_arg_in(&call, m->b, 0, m->b->bytes);
    args.c = tsri_arg_out(&call, m->c, 0, m->c->bytes);
    args.workspace = tsri_arg_inout(&call, m->workspace, 0, m->workspace->bytes);
    TSR_TRY(TSRI_LAUNCH(&call, MATMUL, &args));
    TSR_TRY(tsri_stream_sync(call.stream));
    rate_out->wall = flops / (tsri_now_s() - begin);
    rate_out->cpu = flops * threads / (tsri_bench_team_s(threads) - begin_cpu);
    return TSR_OK;
}

void tsri_bench_matmul_close(bench_matmul *m)
{
    tsri_buffer_release(&m->a);
    tsri_buffer_release(&m->b);
    tsri_buffer_release(&m->c);
    tsri_buffer_release(&m->workspace);
}
