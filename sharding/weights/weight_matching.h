// SPDX-License-Identifier: Apache-2.0
#pragma once
// `match_weights()` determines which tensor of a checkpoint goes to which
// tensor of a module.

#include "tessera/runtime/comm/communicator.h"
#include "tessera/sharding/tensors/tensor_spec.h"
#include "tessera/sharding/weights/load_weights.h"
#include "tessera/sharding/weights/weight_files.h"

#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera::sharding {

/// A parameter or buffer of a module, and where a file has it.
struct WeightTarget {
  TensorSpec spec;
  at::Tensor tensor;
  bool is_buffer = false;
  bool is_chosen = true; ///< see LoadWeightsOptions::only
  bool is_found = false; ///< whether a name was found
  /// Null: it keeps its values.
  const WeightEntry* entry = nullptr;
  std::vector<FileRegion> source; ///< the whole tensor in the entry
};

/// Returns the parameters and registered buffers of `module`, tied ones once.
std::vector<WeightTarget> weight_targets_in(const torch::nn::Module& module);

/// What match_weights() finds for targets that may be a part of the model.
struct WeightMatches {
  LoadWeightsReport report;
  /// Of LoadWeightsOptions::only and `except`, those that match none of the
  /// targets.
  std::vector<std::string> unused_patterns;
};

/// match_weights() without the check of `unused_patterns`.
WeightMatches find_matches(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options);

/// "unexpected: 'wights'; the nearest is 'weights'": a tensor of the
/// checkpoint, also by the name that rules have given it.
/// @param candidates names of the model.
std::string unexpected_text(
    const std::string& name,
    const LoadWeightsOptions& options,
    const std::vector<std::string>& candidates);

/// Returns all names of the targets, with the others of each.
std::vector<std::string> names_of(
    const std::vector<WeightTarget>& targets,
    const OtherNames& others);

/// @throws tessera::Error naming a pattern that matches nothing in the model.
/// @param names of the model's tensors.
void check_patterns_used(
    const std::vector<std::string>& unused_patterns,
    const std::vector<std::string>& names);

/// Sets entry and source of the targets for which the checkpoint has a
/// tensor.
/// @throws tessera::Error that names everything that does not match.
LoadWeightsReport match_weights(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options);

/// As match_weights(), for the targets of one rank. The checkpoint also
/// contains those of other pipeline stages and experts: what any rank takes is
/// neither unexpected nor left out. The report covers all ranks. Collective;
/// blocks.
/// @throws tessera::Error on all ranks when something does not match on one.
LoadWeightsReport match_weights_of_rank(
    std::vector<WeightTarget>& targets,
    const WeightFiles& files,
    const LoadWeightsOptions& options,
    Communicator& ranks,
    const WaitCheck& check);

} // namespace tessera::sharding
