// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loading files of whole models into parts of them.

#include "tessera/engine/checkpoint/job_ranks.h"
#include "tessera/sharding/load_weights.h"

#include <torch/nn/module.h>

namespace tessera {

/// Options that read from each tensor of a whole model what this rank has of
/// it, by LoadWeightsOptions::pieces. Where they have pieces already, those are
/// taken to know the parts.
LoadWeightsOptions options_for_parts(
    LoadWeightsOptions options,
    const JobRanks& job,
    const torch::nn::Module& module);

} // namespace tessera
