/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file gemm.c
 * The only file that knows oneDNN (C API of version 2).
 *
 * bf16 goes through matmul primitives where they use the processor's bf16 dot product (twice the
 * f32 rate on Zen 4). They run on the calling thread alone: oneDNN would split k over threads for
 * some shapes and so make bits depend on their number. matmul.c cuts the work and gives the pieces
 * to threads.
 *
 * Primitives are made anew per matmul. oneDNN keeps its own cache of them, from which one comes in
 * 3 to 40 us, and its scratch memory asks for creation and use on the same thread.
 */
#include "kernels/cpu/cpu_priv.h"

#include <oneapi/dnnl/dnnl.h>

/* Threads that the caller may use; oneDNN gets one until leave(). */
static int enter(void)
{
    int threads = omp_in_parallel() ? 1 : omp_get_max_threads();
    if (threads > 1) {
        omp_set_num_threads(1);
    }
    return threads;
}

static void leave(int threads)
{
    if (threads > 1) {
        omp_set_num_threads(threads);
    }
}

static bool describe(dnnl_memory_desc_t *out, int64_t rows, int64_t cols, int64_t row_stride,
                     int64_t col_stride, tsr_dtype type)
{
    dnnl_dims_t dims = {rows, cols};
    dnnl_dims_t strides = {row_stride, col_stride};
    return dnnl_memory_desc_init_by_strides(out, 2, dims, type == TSR_BF16 ? dnnl_bf16 : dnnl_f32,
                                            strides) == dnnl_success;
}

/* Drop what depends on the tile's shape. */
static void drop_primitive(tsrk_cpu_bf16_gemm *gemm)
{
    (void)dnnl_primitive_destroy(gemm->primitive);
    (void)dnnl_memory_destroy(gemm->a);
    (void)dnnl_memory_destroy(gemm->b);
    (void)dnnl_memory_destroy(gemm->c);
    gemm->primitive = gemm->a = gemm->b = gemm->c = NULL;
}

void tsrk_cpu_bf16_gemm_close(tsrk_cpu_bf16_gemm *gemm)
{
    drop_primitive(gemm);
    if (gemm->stream != NULL) {
        (void)dnnl_stream_destroy(gemm->stream);
    }
    if (gemm->engine != NULL) {
        (void)dnnl_engine_destroy(gemm->engine);
    }
    gemm->stream = gemm->engine = NULL;
}

static bool open_engine(tsrk_cpu_bf16_gemm *gemm)
{
    if (gemm->engine != NULL) {
        return gemm->stream != NULL;
    }
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    bool good = dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success &&
                dnnl_stream_create(&stream, engine, dnnl_stream_default_flags) == dnnl_success;
    gemm->engine = engine;
    gemm->stream = stream;
    return good;
}

static bool make_memory(const dnnl_memory_desc_t *desc, dnnl_engine_t engine, void **out)
{
    dnnl_memory_t memory = NULL;
    bool good = dnnl_memory_create(&memory, desc, engine, DNNL_MEMORY_NONE) == dnnl_success;
    *out = memory;
    return good;
}

bool tsrk_cpu_has_bf16(void)
{
#if defined(__AVX512F__)
    unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    unsigned need = (unsigned)dnnl_cpu_isa_avx512_core_bf16;
    return (isa & need) == need;
#else
    return false; /* this level has no such product, whatever the processor has */
#endif
}

/* oneDNN has generated code for this form: anything else is a reference loop or an emulation,
 * slower than conversion. */
static bool is_fast(const_dnnl_primitive_desc_t desc)
{
    const char *name = NULL;
    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           name != NULL && (strncmp(name, "brg:", 4) == 0 || strncmp(name, "gemm:jit", 8) == 0);
}

static bool make_primitive(tsrk_cpu_bf16_gemm *gemm, const tsrk_matmul *args,
                           const tsrk_cpu_bf16_tile *tile)
{
    dnnl_memory_desc_t a;
    dnnl_memory_desc_t b;
    dnnl_memory_desc_t c;
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    drop_primitive(gemm);
    bool good =
        open_engine(gemm) &&
        describe(&a, tile->m, args->k, args->trans_a ? 1 : args->lda, args->trans_a ? args->lda : 1,
                 TSR_BF16) &&
        describe(&b, args->k, tile->n, args->trans_b ? 1 : args->ldb, args->trans_b ? args->ldb : 1,
                 TSR_BF16) &&
        describe(&c, tile->m, tile->n, tile->ldc, 1, tile->c_type) &&
        dnnl_matmul_desc_init(&matmul, &a, &b, NULL, &c) == dnnl_success &&
        dnnl_primitive_desc_create(&desc, &matmul, NULL, gemm->engine, NULL) == dnnl_success &&
        is_fast(desc) && dnnl_primitive_create(&primitive, desc) == dnnl_success;
    gemm->primitive = primitive;
    if (desc != NULL) {
        (void)dnnl_primitive_desc_destroy(desc);
    }
    gemm->m = tile->m;
    gemm->n = tile->n;
    gemm->c_type = tile->c_type;
    return good && make_memory(&a, gemm->engine, &gemm->a) &&
           make_memory(&b, gemm->engine, &gemm->b) && make_memory(&c, gemm->engine, &gemm->c);
}

static bool set_address(void *memory, const void *address)
{
    union {
        const void *in;
        void *out;
    } handle = {address}; /* oneDNN has one handle type; a and b are only read */
    return dnnl_memory_set_data_handle(memory, handle.out) == dnnl_success;
}

bool tsrk_cpu_bf16_gemm_run(tsrk_cpu_bf16_gemm *gemm, const tsrk_matmul *args,
                            const tsrk_cpu_bf16_tile *tile)
{
    if (gemm->refused) {
        return false;
    }
    int threads = enter();
    bool same = gemm->primitive != NULL && gemm->m == tile->m && gemm->n == tile->n &&
                gemm->c_type == tile->c_type;
    bool good = same || make_primitive(gemm, args, tile);
    good = good && set_address(gemm->a, tile->a) && set_address(gemm->b, tile->b) &&
           set_address(gemm->c, tile->c);
    if (good) {
        dnnl_exec_arg_t bound[] = {
            {DNNL_ARG_SRC, gemm->a}, {DNNL_ARG_WEIGHTS, gemm->b}, {DNNL_ARG_DST, gemm->c}};
        good = dnnl_primitive_execute(gemm->primitive, gemm->stream, 3, bound) == dnnl_success;
    }
    leave(threads);
    gemm->refused = !good;
    return good;
}
