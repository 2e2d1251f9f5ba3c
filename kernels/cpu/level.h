/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file level.h
 * Names of one instruction level's functions.
 *
 * cmake/TesseraKernels.cmake compiles each file of this folder for every level with TSRK_LEVEL set
 * to its name, and tsrk_cpu_matmul is then tsrk_avx2_matmul, say. Without TSRK_LEVEL the names are
 * those of kernels/levels.c, which forwards to the level at work. A function that several files
 * use and that is missing here is defined twice, which the linker says.
 */
#pragma once

#ifdef TSRK_LEVEL
/* NOLINTBEGIN(readability-identifier-naming): names of functions */
#    define TSRK_JOIN(level, name) tsrk_##level##_##name
#    define TSRK_OF(level, name)   TSRK_JOIN(level, name)
#    define TSRK_AT(name)          TSRK_OF(TSRK_LEVEL, name)

#    define tsrk_cpu_matmul           TSRK_AT(matmul)
#    define tsrk_cpu_sum              TSRK_AT(sum)
#    define tsrk_cpu_multiply         TSRK_AT(multiply)
#    define tsrk_cpu_embedding        TSRK_AT(embedding)
#    define tsrk_cpu_embedding_bwd    TSRK_AT(embedding_bwd)
#    define tsrk_cpu_add_position     TSRK_AT(add_position)
#    define tsrk_cpu_add_position_bwd TSRK_AT(add_position_bwd)
#    define tsrk_cpu_layernorm        TSRK_AT(layernorm)
#    define tsrk_cpu_layernorm_bwd    TSRK_AT(layernorm_bwd)
#    define tsrk_cpu_rmsnorm          TSRK_AT(rmsnorm)
#    define tsrk_cpu_rmsnorm_bwd      TSRK_AT(rmsnorm_bwd)
#    define tsrk_cpu_pointwise        TSRK_AT(pointwise)
#    define tsrk_cpu_pointwise_bwd    TSRK_AT(pointwise_bwd)
#    define tsrk_cpu_silu_mul         TSRK_AT(silu_mul)
#    define tsrk_cpu_silu_mul_bwd     TSRK_AT(silu_mul_bwd)
#    define tsrk_cpu_rope             TSRK_AT(rope)
#    define tsrk_cpu_rope_table       TSRK_AT(rope_table)
#    define tsrk_cpu_attention        TSRK_AT(attention)
#    define tsrk_cpu_attention_bwd    TSRK_AT(attention_bwd)
#    define tsrk_cpu_add              TSRK_AT(add)
#    define tsrk_cpu_scale            TSRK_AT(scale)
#    define tsrk_cpu_zero             TSRK_AT(zero)
#    define tsrk_cpu_copy_blocks      TSRK_AT(copy_blocks)
#    define tsrk_cpu_dropout          TSRK_AT(dropout)
#    define tsrk_cpu_count_labels     TSRK_AT(count_labels)
#    define tsrk_cpu_softmax          TSRK_AT(softmax)
#    define tsrk_cpu_softmax_bwd      TSRK_AT(softmax_bwd)
#    define tsrk_cpu_xent_max         TSRK_AT(xent_max)
#    define tsrk_cpu_xent_sum         TSRK_AT(xent_sum)
#    define tsrk_cpu_xent_loss        TSRK_AT(xent_loss)
#    define tsrk_cpu_xent_bwd         TSRK_AT(xent_bwd)
#    define tsrk_cpu_sum_squares      TSRK_AT(sum_squares)
#    define tsrk_cpu_clip             TSRK_AT(clip)
#    define tsrk_cpu_loss_scale       TSRK_AT(loss_scale)
#    define tsrk_cpu_adamw            TSRK_AT(adamw)
#    define tsrk_cpu_sgd              TSRK_AT(sgd)
#    define tsrk_cpu_init_normal      TSRK_AT(init_normal)
#    define tsrk_cpu_count_update     TSRK_AT(count_update)
#    define tsrk_cpu_check_ids        TSRK_AT(check_ids)
#    define tsrk_cpu_custom           TSRK_AT(custom)
#    define tsrk_cpu_bf16_gemm_close  TSRK_AT(bf16_gemm_close)
#    define tsrk_cpu_bf16_gemm_run    TSRK_AT(bf16_gemm_run)
#    define tsrk_cpu_panels_floats    TSRK_AT(panels_floats)
#    define tsrk_cpu_panels_scratch   TSRK_AT(panels_scratch)
#    define tsrk_cpu_panels_pack      TSRK_AT(panels_pack)
#    define tsrk_cpu_panels_times     TSRK_AT(panels_times)
#    define tsrk_cpu_has_bf16         TSRK_AT(has_bf16)
#    define tsrk_cpu_product          TSRK_AT(product)
#    define tsrk_cpu_tile_along_k     TSRK_AT(tile_along_k)
#    define tsrk_cpu_tile_by_step     TSRK_AT(tile_by_step)
#    define tsrk_cpu_pack_a           TSRK_AT(pack_a)
#    define tsrk_cpu_pack_b_rows      TSRK_AT(pack_b_rows)
#    define tsrk_cpu_pack_b_columns   TSRK_AT(pack_b_columns)
#    define tsrk_cpu_product_bytes    TSRK_AT(product_bytes)
#    define tsrk_cpu_load             TSRK_AT(load)
#    define tsrk_cpu_store            TSRK_AT(store)
#    define tsrk_cpu_store_add        TSRK_AT(store_add)
#    define tsrk_cpu_rng_words        TSRK_AT(rng_words)
#    define tsrk_cpu_ws_matmul        TSRK_AT(ws_matmul)
#    define tsrk_cpu_ws_layernorm_bwd TSRK_AT(ws_layernorm_bwd)
#    define tsrk_cpu_ws_rmsnorm_bwd   TSRK_AT(ws_rmsnorm_bwd)
#    define tsrk_cpu_ws_attention     TSRK_AT(ws_attention)
#    define tsrk_cpu_ws_attention_bwd TSRK_AT(ws_attention_bwd)
#    define tsrk_cpu_table            TSRK_AT(table)
/* NOLINTEND(readability-identifier-naming) */
#endif
