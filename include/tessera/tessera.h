/* SPDX-License-Identifier: Apache-2.0
 * Copyright The Tessera authors */
/**
 * @file tessera.h
 * Every public header of Tessera.
 *
 * What holds for all functions: an argument may be NULL only where its comment says so. Otherwise a
 * function that returns a status refuses it (TSR_ERR_INVALID, naming it) and has changed nothing;
 * any other answers NULL, "", 0, NaN or false and does nothing. Negative counts, values that an
 * enum does not have and numbers that cannot be meant are refused likewise: docs/arguments.md.
 */
#pragma once

#include "tessera/comm.h"
#include "tessera/custom_op.h"
#include "tessera/dtensor.h"
#include "tessera/dtype.h"
#include "tessera/fsdp.h"
#include "tessera/gpt2.h"
#include "tessera/layers.h"
#include "tessera/layout.h"
#include "tessera/llama.h"
#include "tessera/mesh.h"
#include "tessera/mesh_algebra.h"
#include "tessera/module.h"
#include "tessera/op.h"
#include "tessera/optim.h"
#include "tessera/param.h"
#include "tessera/sim.h"
#include "tessera/state.h"
#include "tessera/status.h"
#include "tessera/tape.h"
#include "tessera/tp.h"
#include "tessera/unit.h"
#include "tessera/version.h"
#include "tessera/world.h"
