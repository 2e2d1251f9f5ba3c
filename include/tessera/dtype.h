/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file dtype.h
 * Element types of tensors.
 *
 * Threads: pure functions.
 */
#pragma once

#include "tessera/status.h"

#include <stddef.h>

TSR_BEGIN_DECLS

/** Element types. Zero means "the default of whoever asks". */
typedef enum tsr_dtype {
    TSR_DTYPE_DEFAULT = 0,
    TSR_F32 = 1,
    TSR_BF16 = 2,
    TSR_F16 = 3,
    TSR_F64 = 4,
    TSR_I32 = 5,
    TSR_I64 = 6,
    TSR_U8 = 7
} tsr_dtype;

/** Sets of element types, a bit each. */
#define TSR_DTYPE_BIT(dtype) (1U << (unsigned)(dtype))
#define TSR_DTYPES_FLOAT     (TSR_DTYPE_BIT(TSR_F32) | TSR_DTYPE_BIT(TSR_BF16) | TSR_DTYPE_BIT(TSR_F16))
#define TSR_DTYPES_ANY       0xfeU

/** Local. Bytes of one element; 0 for TSR_DTYPE_DEFAULT or an unknown value. */
TSR_API size_t tsr_dtype_size(tsr_dtype dtype);

/** Local. Name such as "bf16"; "?" for an unknown value. */
TSR_API const char *tsr_dtype_name(tsr_dtype dtype);

/** Local. The type called @p name ("f32", "bf16", "auto" for the default); TSR_ERR_INVALID. */
TSR_CHECKED tsr_status tsr_dtype_parse(const char *name, tsr_dtype *out);

TSR_END_DECLS
