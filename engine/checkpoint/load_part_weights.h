// SPDX-License-Identifier: Apache-2.0
#pragma once
// `options_for_parts()` adapts the loading of whole models to ranks that have a
// part of the model.

#include "tessera/engine/checkpoint/job_ranks.h"
#include "tessera/sharding/load_weights.h"

#include <torch/nn/module.h>

namespace tessera::engine {

/// Sets LoadWeightsOptions::pieces such that this rank reads its part of each
/// tensor of a whole model. Options that have pieces already are assumed to
/// account for the parts.
LoadWeightsOptions options_for_parts(
    LoadWeightsOptions options,
    const JobRanks& job,
    const torch::nn::Module& module);

} // namespace tessera::engine
