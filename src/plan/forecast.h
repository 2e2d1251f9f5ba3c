/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file forecast.h
 * What a job would cost on a cluster: the trainer's own step on the sim backend, played by the
 * clock of a cluster's rates and links.
 *
 * The forecast is of rank 0, which by the ceil rule has the largest pieces of everything, in its
 * second step (the first in which optimizer state has been updated before). Every rank is taken to
 * be as fast as it.
 */
#pragma once

#include "job/job.h"
#include "plan/clock.h"
#include "plan/cluster.h"

enum {
    TSRI_FORECAST_WHY_BYTES = 400,
    TSRI_FORECAST_NAME_BYTES = 64
};

/** The least and the most of a figure on the machine's slow, usual and fast ends. */
typedef struct tsri_span {
    double low, high;
} tsri_span;

typedef enum tsri_fit {
    TSRI_FIT_UNKNOWN = 0, /* the device's memory is not known */
    TSRI_FIT_NO,          /* more than memory less headroom */
    TSRI_FIT_TIGHT,       /* above 92 % of the memory */
    TSRI_FIT_YES
} tsri_fit;

/** Communication over one set of axes. */
typedef struct tsri_forecast_axes {
    char axes[TSRI_FORECAST_NAME_BYTES];
    int size;          /* of the group */
    const char *link;  /* slowest link that it crosses; the cluster's */
    double sent;       /* bytes that the rank sends in a step */
    double node_bytes; /* that its node sends to others in a step, all groups that lie alike */
    double busy_s, exposed_s;
    tsri_span busy_range, exposed_range;
} tsri_forecast_axes;

typedef struct tsri_forecast { /* lint: the printed forecast, figure by figure */
    char preset[TSRI_FORECAST_NAME_BYTES];
    char why[TSRI_FORECAST_WHY_BYTES];
    char peak[TSRI_FORECAST_NAME_BYTES];
    bool possible; /* else why says what forbids it, and nothing else is set */
    tsri_fit fit;
    int counted; /* micro-batches that were run */
    int axes_count;

    tsri_step_memory memory; /* peak_label is copied to peak */
    size_t logits_bytes;     /* of activations at the peak: logits and their gradient */

    /* At the usual rates; the ranges are those of the cluster's ends. */
    double step_s, compute_s;
    double comm_s, exposed_s;    /* collectives; of those, what compute waits for */
    double copy_exposed_s;       /* waits for transfers to and from host memory */
    double tokens, tokens_per_s; /* of the whole job */
    tsri_span step_range, compute_range, comm_range, exposed_range, tokens_per_s_range, mfu_range;
    double flops;         /* of the rank's products, as computed (recomputation too) */
    double mfu, mfu_full; /* 6 N + 6 L h s and 6 N + 12 L h s a token; NaN: peak unknown */
    double node_bytes;    /* over all axes */
    tsri_forecast_axes axes[TSRI_CLOCK_MAX_AXES];
} tsri_forecast;

/**
 * Local. Forecast one step of options on size ranks of cluster. A combination that is not legal is
 * a result (possible false), no failure.
 *
 * Of very many micro-batches a few are run, and the others counted like the last of those: out's
 * counted says how many.
 *
 * trace: NULL, or receives the operations of the micro-batches that ran as a Chrome trace.
 */
tsr_status tsri_forecast_run(const tsri_job_options *options, int size, const tsri_cluster *cluster,
                             tsri_text *trace, tsri_forecast *out);

/**
 * Local. The same in a few milliseconds, from few layers and micro-batches: every further one costs
 * what the last one did. Off where a peak moves with their number.
 */
tsr_status tsri_forecast_sketch(const tsri_job_options *options, int size,
                                const tsri_cluster *cluster, tsri_forecast *out);

/** Flops of a token's forward and backward by the model's sizes: 6 per parameter that multiplies
 *  (embeddings are looked up, unless the head is the embedding) and attention's 6 L heads head_dim
 *  seq (the mask leaves half) or, full, 12. */
double tsri_model_token_flops(const tsri_model_spec *spec, int64_t seq, bool full);

/** Forecasts whose times are closer than this share are equal: no plan can tell them apart. */
#define TSRI_FORECAST_EQUAL 0.05

/** Whether f is possible and nothing says that it does not fit. */
bool tsri_forecast_may_run(const tsri_forecast *f);
/** Index of the best that may run, or -1: of those as fast as the fastest, the one with the least
 *  memory. */
int tsri_forecast_best(const tsri_forecast *forecasts, int count);
/** Whether f is as fast as the fastest of forecasts that may run. */
bool tsri_forecast_is_tied(const tsri_forecast *f, const tsri_forecast *forecasts, int count);

/** How a job's rows fall on its data ranks. */
typedef struct tsri_rows {
    int data_ranks;
    int64_t most;       /* of a rank, in a micro-batch */
    int idle;           /* data ranks without any */
    int fewer;          /* data ranks with some, but less than most */
    int64_t even_batch; /* the nearest larger number of sequences of a step that is even */
} tsri_rows;
void tsri_forecast_rows(const tsri_job_options *options, int size, tsri_rows *out);

/**
 * States of a model of n parameters on d devices by the textbook (Rajbhandari et al. 2020), bytes
 * per device: bf16 parameters 2 n, f32 gradients 4 n, and of the optimizer master weights and both
 * moments 12 n; stage 0..3 says how many of optimizer, gradients and parameters are divided by d.
 */
typedef struct tsri_zero_row {
    double params, grads, optim;
} tsri_zero_row;
tsri_zero_row tsri_zero_ledger(double n, int d, int stage);

/* ---- pages (forecast_print.c, forecast_json.c) ---- */

/** "replicate=2 shard=8", in text. */
const char *tsri_forecast_mesh(const tsri_job_options *options, char *text, size_t size);
/** "yes", "tight", "no", "?". */
const char *tsri_fit_word(tsri_fit fit);

/** What the forecasts are of. */
typedef struct tsri_forecast_head {
    const tsri_job_options *options;
    const tsri_cluster *cluster;
    int size;
    bool by_default; /* nobody named the cluster */
} tsri_forecast_head;

/** Memory, traffic and time of one forecast in full. */
void tsri_forecast_print(const tsri_forecast_head *head, const tsri_forecast *forecast,
                         FILE *stream);
/** Forecasts as a table, which wins and why. */
void tsri_forecast_print_table(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                               int count, FILE *stream);
/** That none of forecasts fits, and what helps. */
void tsri_forecast_print_hopeless(const tsri_forecast *forecasts, int count, FILE *stream);
/** What is forecast, and on what. */
void tsri_forecast_print_head(const tsri_forecast_head *head, FILE *stream);
/** The textbook's states of the model on the job's data ranks, beside this job's. */
void tsri_forecast_print_ledger(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                                int count, FILE *stream);
/** All of it as one JSON object. */
tsr_status tsri_forecast_print_json(const tsri_forecast_head *head, const tsri_forecast *forecasts,
                                    int count, FILE *stream);
