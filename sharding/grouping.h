// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which parameters form one page: the unit that is gathered, reduced and
// dropped together. By default one block of a repeated stack.

#include "tessera/sharding/parameter_census.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct GroupPolicy {
  /// What is smaller is collected until it reaches this size; what is larger
  /// keeps a group of its own.
  int64_t min_group_numel = 100'000;
};

/// Parameters that travel together: same dtype, same requires_grad.
struct GroupSpec {
  std::string name; ///< path of the module, e.g. "encoder.layer.3"
  std::vector<ParameterRecord> parameters; ///< not empty
  /// The parameters come from several places of the model, so that their
  /// gradients do not arrive together.
  bool scattered = false;
  /// What the module asked for (residency_hints.h), if anything.
  std::optional<int> zero_stage;
};

/// Divides the parameters of `module` into groups, in registration order:
/// - children of a container (Sequential, ModuleList, ModuleDict) and siblings
///   of one composite type are blocks, a group each; blocks are not divided;
/// - modules with ResidencyHints are blocks as well;
/// - other children without blocks inside are a group each; modules around
///   blocks are transparent;
/// - small groups that ask for the same are merged;
/// - storages that several groups use (tied or sliced weights) form groups of
///   their own;
/// - each group is then split by dtype and requires_grad; small parts of
///   several groups, such as float32 norms, travel together.
std::vector<GroupSpec> make_groups(
    const torch::nn::Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy);

} // namespace tessera
