// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FusedSteps` lists the optimizers that update every element independently,
// one row each; kernels for all devices and instruction sets follow from it.
//
// A row NameStep has the hyperparameters of a step, its kName in messages, the
// number of its states() and the check() of its ranges. NameStep::Rule<T> has
// the constants of a step, computed in double, and the arithmetic, written once
// for the vectors of the CPU, for float64 and for CUDA:
//
//   template <typename Vec>
//   void update(Vec& master, Vec grad, Vec (&state)[kStates]) const;
//
// `grad` has been multiplied by grad_scale. A Vec converts from T and has
// + - * /, fma(), sqrt() and sign(), which round once each: as written, so are
// the bits everywhere. State is that of UpdateTensors::states(). Plain C++, see
// flat_shard.h.

#include "tessera/runtime/kernels/adamw_rule.h"
#include "tessera/runtime/kernels/adan_rule.h"
#include "tessera/runtime/kernels/lion_rule.h"
#include "tessera/runtime/kernels/sgd_rule.h"

namespace tessera::runtime {

template <typename... Steps>
struct StepList {};

using FusedSteps = StepList<AdamWStep, SgdStep, LionStep, AdanStep>;

/// The shard of a run whose master is T.
template <typename T, typename Step>
using ShardOf = UpdateShard<T, typename Step::template Rule<T>>;

} // namespace tessera::runtime
