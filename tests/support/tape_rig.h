/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tape_rig.h
 * A world, mesh, comm and tape for tests, and leaves whose gradients land in full-size f32
 * dtensors.
 *
 * A leaf is a parameter of any number of dims in any layout: its piece is written from the global
 * values, so the same values can be laid out in every way. The sink keeps one gradient per layout
 * in which contributions arrive.
 */
#pragma once

#include "autograd/autograd.h"
#include "support/tsr_test.h"

#define RIG_MAX_LEAVES 8
#define RIG_MAX_GRADS  4

typedef struct rig_leaf {
    tsr_param param;
    tsr_dtensor *grad[RIG_MAX_GRADS];
    int grad_count, contributions;
    bool refuse; /* hand out no destination */
} rig_leaf;

typedef struct rig {
    tsr_world *world;
    tsr_mesh *mesh;
    tsr_comm *comm;
    tsr_tape *tape;
    tsr_dtensor *labels; /* I32 [2, 3], replicated: for steps that need no other */
    rig_leaf *leaves[RIG_MAX_LEAVES];
    int leaf_count;
} rig;

/** backend "cpu": this job's ranks; "sim": rank sim_rank of the mesh. The ledger is on. */
tsr_status rig_open(rig *out, const char *backend, const tsr_mesh_axis *axes, int axis_count,
                    int sim_rank);
void rig_close(rig *r);
/** Release the leaves. */
void rig_clear(rig *r);

/** A layout of shape[ndim], one word per axis: "R", "P", "S0" .. "S4". */
tsr_status rig_layout(const rig *r, const int64_t *shape, int ndim, const char *const *words,
                      tsr_layout *out);
/** The value of a trained leaf of layout, owned by the rig. global: all elements, row-major; a
 *  Partial axis gets unequal shares of them. */
tsr_status rig_leaf_add(rig *r, const char *name, const tsr_layout *layout, const float *global,
                        rig_leaf **out);
/** Write the piece of layout of global. */
tsr_status rig_write(tsr_dtensor *tensor, const float *global);
/** A constant, owned by the caller. */
tsr_status rig_floats(rig *r, const tsr_layout *layout, const float *global, tsr_dtensor **out);
tsr_status rig_ints(rig *r, const tsr_layout *layout, const int32_t *global, tsr_dtensor **out);
/** All elements of tensor as doubles, whatever its layout. Collective. */
tsr_status rig_read(tsr_dtensor *tensor, double *global);
/** Sum of the leaf's gradients, all elements. Collective. */
tsr_status rig_grad(const rig_leaf *leaf, int64_t count, double *global);

/** Begin step and micro-batch 0 with the rig's labels. */
tsr_status rig_begin(rig *r, int64_t step);
/** loss = sum of y * weight: an operation of the tests' own. weight: f32, replicated. */
tsr_status rig_dot(tsr_tape *tape, tsr_dtensor *y, tsr_dtensor *weight, tsr_dtensor **out);
