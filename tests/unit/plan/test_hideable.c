/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/* What of a step's communication compute could hide follows from calls and waits alone. */
#include "plan/hideable.h"
#include "support/tsr_test.h"

static tsri_entry kernel(double seconds)
{
    return (tsri_entry){.kind = TSRI_ENTRY_KERNEL,
                        .stream = TSRI_STREAM_COMPUTE,
                        .begin_s = 1.0,
                        .end_s = 1.0 + seconds};
}

static tsri_entry call(tsri_stream_kind stream, uint64_t seq, double seconds)
{
    return (tsri_entry){.kind = TSRI_ENTRY_COLLECTIVE,
                        .stream = stream,
                        .seq = seq,
                        .begin_s = 1.0,
                        .end_s = 1.0 + seconds};
}

static tsri_entry wait_for(tsri_stream_kind stream, uint64_t seq)
{
    return (tsri_entry){
        .kind = TSRI_ENTRY_WAIT, .stream = TSRI_STREAM_COMPUTE, .op = (int)stream, .seq = seq};
}

#define CHECK_HIDEABLE(wanted, ...) \
    do { \
        const tsri_entry entries_[] = {__VA_ARGS__}; \
        double s_ = -1.0; \
        CHECK_OK(tsri_hideable_s(entries_, (int)(sizeof entries_ / sizeof entries_[0]), &s_)); \
        /* A few roundings of numbers near 1. */ \
        CHECK_NEAR(s_, wanted, 1e-14); \
    } while (0)

static void test_windows(void)
{
    const tsri_stream_kind g = TSRI_STREAM_GATHER;
    const tsri_stream_kind r = TSRI_STREAM_REDUCE;

    CHECK_HIDEABLE(0.0, call(g, 1, 0.5), wait_for(g, 1), kernel(2.0)); /* waited for at once */
    CHECK_HIDEABLE(0.5, call(g, 1, 0.5), kernel(2.0), wait_for(g, 1));
    CHECK_HIDEABLE(0.25, call(g, 1, 0.5), kernel(0.25), wait_for(g, 1), kernel(2.0));
    CHECK_HIDEABLE(0.0, kernel(2.0), call(r, 1, 0.5)); /* nothing is left to compute */
    CHECK_HIDEABLE(0.5, call(r, 1, 0.5), kernel(2.0)); /* nobody waits within the step */
    CHECK_HIDEABLE(0.5, call(g, 1, 0.5), wait_for(r, 7), kernel(2.0), wait_for(g, 9));
    CHECK_HIDEABLE(0.0, call(TSRI_STREAM_COMPUTE, 1, 0.5), kernel(2.0)); /* compute runs it */
}

/* A second of compute hides one second, of the collective that is waited for first. */
static void test_sharing(void)
{
    const tsri_stream_kind g = TSRI_STREAM_GATHER;
    const tsri_stream_kind r = TSRI_STREAM_REDUCE;

    CHECK_HIDEABLE(1.0, call(g, 1, 0.75), call(r, 1, 0.75), kernel(1.0));
    CHECK_HIDEABLE(2.0, call(r, 1, 1.0), call(g, 1, 1.0), kernel(1.0), wait_for(g, 1), kernel(1.0));
    CHECK_HIDEABLE(1.5, call(r, 1, 0.5), call(g, 1, 1.0), kernel(1.5), wait_for(g, 1), kernel(1.0));
}

/* Compute waits for a gather that waited for another stream: both are over then. */
static void test_waits_through_streams(void)
{
    const tsri_stream_kind g = TSRI_STREAM_GATHER;
    const tsri_stream_kind r = TSRI_STREAM_REPLICATE;
    tsri_entry chained = wait_for(r, 1);

    chained.stream = g;
    CHECK_HIDEABLE(0.0, call(r, 1, 0.5), chained, call(g, 1, 0.25), wait_for(g, 1), kernel(2.0));
    CHECK_HIDEABLE(0.75, call(r, 1, 0.5), chained, call(g, 1, 0.25), kernel(1.0), wait_for(g, 1),
                   kernel(2.0));
    /* A wait that comes behind the gather does not hold it. */
    CHECK_HIDEABLE(0.5, call(r, 1, 0.5), call(g, 1, 0.25), chained, wait_for(g, 1), kernel(2.0));
}

const tsr_test_case tsr_test_cases[] = {
    {"waits_through_streams", test_waits_through_streams},
    {"windows", test_windows},
    {"sharing", test_sharing},
    {NULL, NULL},
};
