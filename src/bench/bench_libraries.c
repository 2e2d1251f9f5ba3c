/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file bench_libraries.c
 * Matrix products of other libraries, to measure beside ours.
 *
 * oneDNN is what this program has loaded. BLIS and OpenBLAS are opened by name and may be absent:
 * nothing here depends on them. Declarations are ours: neither has to have its headers installed.
 */
#include "bench_priv.h"

#include "base/base.h"

#include <dlfcn.h>
#include <omp.h>
#include <time.h>

enum {
    ROW_MAJOR = 101, /* cblas */
    AS_IT_IS = 111,
    TRANSPOSED = 112
};

/* POSIX gives functions as object pointers; ISO C has no cast between the two. */
static bool find_function(void *handle, const char *name, void *function_out)
{
    void *symbol = dlsym(handle, name);

    *(void **)function_out = symbol;
    return symbol != NULL;
}

#if defined(__SANITIZE_ADDRESS__)
enum {
    OPENS = 0 /* a leak sanitizer does not survive threads of theirs */
};
#else
enum {
    OPENS = 1
};
#endif

/* Their threads may outlive their use, so their code stays. */
static void *open_any(const char *const *files)
{
    void *handle = NULL;

    for (int i = 0; OPENS && files[i] != NULL && handle == NULL; i++) {
        handle = dlopen(files[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    }
    return handle;
}

static void open_dnnl(bench_library *l, int threads)
{
    (void)threads; /* OpenMP's, which each call is given */
    *l = (bench_library){.name = "oneDNN", .handle = dlopen(NULL, RTLD_NOW)};
    l->found = l->handle != NULL && find_function(l->handle, "dnnl_sgemm", &l->dnnl);
}

static void open_blis(bench_library *l, int threads)
{
    static const char *const files[] = {"libblis.so.4", "libblis.so", NULL};
    void (*set_threads)(int64_t count) = NULL;

    *l = (bench_library){.name = "BLIS", .handle = open_any(files)};
    l->found = l->handle != NULL && find_function(l->handle, "cblas_sgemm", &l->cblas) &&
               find_function(l->handle, "bli_thread_set_num_threads", &set_threads);
    if (l->found) {
        set_threads(threads);
    }
}

static void open_openblas(bench_library *l, int threads)
{
    static const char *const files[] = {"libopenblas.so.0", "libopenblas.so", NULL};
    void (*set_threads)(int count) = NULL;

    *l = (bench_library){.name = "OpenBLAS", .handle = open_any(files)};
    l->found = l->handle != NULL && find_function(l->handle, "cblas_sgemm", &l->cblas) &&
               find_function(l->handle, "openblas_set_num_threads", &set_threads);
    if (l->found) {
        set_threads(threads);
        l->spin_s = threads > 1 ? 0.03 : 0.0; /* 2^26 ticks */
    }
}

void tsri_bench_libraries_open(int threads, bench_library libraries[TSRI_BENCH_LIBRARIES])
{
    open_dnnl(&libraries[0], threads);
    open_blis(&libraries[1], threads);
    open_openblas(&libraries[2], threads);
}

void tsri_bench_libraries_close(bench_library libraries[TSRI_BENCH_LIBRARIES])
{
    for (int i = 0; i < TSRI_BENCH_LIBRARIES; i++) {
        if (libraries[i].handle != NULL) {
            (void)dlclose(libraries[i].handle);
        }
    }
}

static void call(const bench_library *l, const bench_matmul *m)
{
    const tsrk_matmul *args = &m->args;
    const float *a = m->a->address;
    const float *b = m->b->address;
    float *c = m->c->address;

    if (l->cblas != NULL) {
        l->cblas(ROW_MAJOR, args->trans_a ? TRANSPOSED : AS_IT_IS,
                 args->trans_b ? TRANSPOSED : AS_IT_IS, (int)args->m, (int)args->n, (int)args->k,
                 1.0F, a, (int)args->lda, b, (int)args->ldb, 0.0F, c, (int)args->ldc);
    } else {
        (void)l->dnnl(args->trans_a ? 'T' : 'N', args->trans_b ? 'T' : 'N', args->m, args->n,
                      args->k, 1.0F, a, args->lda, b, args->ldb, 0.0F, c, args->ldc);
    }
}

bench_rate tsri_bench_library_run(const bench_library *library, const bench_matmul *m)
{
    const double flops = 2.0 * (double)m->args.m * (double)m->args.n * (double)m->args.k;
    const struct timespec rest = {.tv_nsec = (long)(1e9 * library->spin_s)};
    const int threads = tsri_comm_device(m->comm)->threads;
    const int threads_before = omp_get_max_threads();
    bench_rate out = {0.0, 0.0};

    omp_set_num_threads(threads);
    const double begin_cpu = tsri_bench_team_s(1);
    const double begin = tsri_now_s();
    call(library, m);
    out.wall = flops / (tsri_now_s() - begin);
    out.cpu = threads == 1 ? flops / (tsri_bench_team_s(1) - begin_cpu) : 0.0;
    omp_set_num_threads(threads_before);
    if (library->spin_s > 0.0) {
        (void)nanosleep(&rest, NULL);
    }
    return out;
}
