// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tensor of a checkpoint goes where in a module.

#include "tessera/sharding/load_weights.h"
#include "tessera/sharding/weight_files.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera {

/// A parameter or buffer of a module and what the checkpoint has for it.
struct WeightTarget {
  std::vector<std::string> names;
  at::Tensor tensor;
  bool is_buffer = false;
  bool is_found = false; ///< by name
  EntryView source; ///< without an entry: keeps what it holds
};

/// The parameters and registered buffers of `module`, tied ones once.
std::vector<WeightTarget> weight_targets_in(const torch::nn::Module& module);

/// Sets WeightTarget::source where the checkpoint has one.
/// @throws tessera::Error that names everything that does not fit.
LoadWeightsReport match_weights(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options);

} // namespace tessera
