/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file fixture.h
 * What calls.txt names: a small model, values and options, as far along as a call wants it.
 */
#pragma once

#include "tessera/tessera.h"

#include "support/tsr_test.h"

typedef enum api_stage {
    API_BASE,    /* world, mesh, comm, values outside of a tape */
    API_MODEL,   /* modules by shapes */
    API_READY,   /* materialised; tape and optimizer */
    API_STEP,    /* a step has begun */
    API_FORWARD, /* and its micro-batch; the loss is there */
    API_GRADED,  /* after backward */
    API_CLIPPED, /* the norm is measured */
    API_ENDED,   /* the step is over */
    API_EVAL     /* from API_READY: an evaluation is under way; the loss is there */
} api_stage;

enum {
    API_FLOATS = 256
};

typedef struct api_fixture { /* lint: one of everything that a public call takes */
    FILE *sink;
    int rank, size, count, index;
    bool flag;
    double number;
    int64_t long_number;
    uint64_t digest;
    size_t bytes;
    tsr_dtype dtype;
    char text[256];
    int ints[8], zeros[8], everyone[8];
    int64_t longs[TSR_MAX_DIMS], shape[2];
    float floats[API_FLOATS];
    const char *names[1], *op_names[1], *some_names[2];

    tsr_world *world, *world2;
    tsr_world_options world_options;
    tsr_mesh_axis axes[2];
    tsr_mesh *mesh, *mesh2, *mesh_extra;
    const tsr_mesh *meshes[1];
    tsr_comm *comm, *comm2, *comm_extra;
    tsr_layout layout, layout2, x_layout;
    tsr_dtensor *ids, *labels, *x, *heads, *logits, *square, *table, *gain, *tensor2, *tensor_extra;

    tsr_module *model, *branch, *linear, *layer, *gpt2, *module2, *module_extra;
    tsr_param *const *params;
    tsr_param *param;
    tsr_param_spec spec;
    tsr_linear_options linear_options;
    tsr_gpt2_config gpt2_config;
    tsr_llama_config llama_config;
    tsr_tp_rule rules[1];
    tsr_fsdp_options fsdp_options;
    tsr_unit_info infos[2];
    tsr_traffic traffic[2];

    tsr_tape *tape, *tape2;
    tsr_custom_op op;
    tsr_op_shapes op_shapes;
    tsr_op_axis op_axis;
    tsr_product product;
    tsr_dtensor *y, *loss; /* borrowed */
    tsr_optimizer *optimizer, *optimizer2;
    tsr_schedule schedule;
    tsr_state *state, *state2;
    tsr_state_entry entry;
} api_fixture;

/** Collective: all ranks open the same. */
tsr_status api_open(api_fixture *f, api_stage stage);
void api_close(api_fixture *f);
/** After the last case. */
void api_end(void);

/** For a call that adds an owner: it is given back when the fixture closes. */
tsr_mesh *api_lend_mesh(api_fixture *f);
tsr_comm *api_lend_comm(api_fixture *f);
tsr_dtensor *api_lend_tensor(api_fixture *f);
tsr_module *api_lend_module(api_fixture *f);
/** A module for a call that takes it over, whatever comes of the call. */
tsr_module *api_new_module(api_fixture *f);
/** A program for a simulated world. */
tsr_status api_program(tsr_world *world, void *context);

/** The call says that its argument name is NULL. */
#define API_REFUSES(name, call) \
    do { \
        CHECK_EQ((call), TSR_ERR_INVALID); \
        CHECK(api_message_names(name)); \
    } while (0)
/** The call fails, and not by an error of the library. */
#define API_FAILS(call) CHECK(api_is_refusal(call))
bool api_message_names(const char *name);
bool api_is_refusal(tsr_status status);
