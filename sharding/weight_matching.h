// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tensor of a checkpoint goes where in a module.

#include "tessera/runtime/comm/communicator.h"
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

/// The same for the targets of one pipeline stage, whose checkpoint has those
/// of the other stages too: what one of them takes is neither unexpected nor
/// left out. The report is that of all stages. Collective over `group`, this
/// place in every stage; blocks.
/// @throws tessera::Error on all stages when something does not fit on one.
LoadWeightsReport match_weights_of_stage(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& group,
    const WaitCheck& check);

} // namespace tessera
