// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which parameters form one page: the unit that is gathered, reduced and
// dropped together. By default one block of a repeated stack.

#include "tessera/sharding/group_policy.h"
#include "tessera/sharding/parameter_census.h"

#include <torch/nn/module.h>

#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Parameters that travel together: same dtype, same requires_grad.
struct GroupSpec {
  std::string name; ///< path of the module, e.g. "encoder.layer.3"
  std::vector<ParameterRecord> parameters; ///< not empty
  /// The parameters come from several places of the model, so that their
  /// gradients do not arrive together.
  bool scattered = false;
  /// Numbers, in registration order, of the blocks that the parameters come
  /// from. Groups that share one are used together: parts of one block that
  /// differ in dtype or requires_grad.
  std::vector<int> blocks = {};
  /// Whether the group is dropped between forward and backward; nothing where
  /// no rule says so.
  std::optional<bool> reshard_after_forward = {};
  /// As the module itself wishes (residency_hints.h).
  std::optional<int> zero_stage = {};
};

/// Divides the parameters of `module` into groups, in registration order. By
/// default:
/// - children of a container (Sequential, ModuleList, ModuleDict) and siblings
///   of one composite type are blocks, a group each; blocks are not divided;
/// - other children without blocks inside are a group each; modules around
///   blocks are transparent;
/// - small groups are merged;
/// - storages that several groups use (tied or sliced weights) form groups of
///   their own;
/// - modules with wishes of their own (residency_hints.h) are blocks;
/// - each group is then split by dtype and requires_grad; small parts of
///   several groups, such as float32 norms, travel together.
/// `policy` may name the blocks instead, and more. Groups merge only where the
/// rules say the same of them.
/// @param parameters as take_parameter_census() lists them with
///   policy.ignored; what is not among them is in no group.
/// @throws tessera::Error as check_group_policy(), and when a rule matches
///   nothing, with the nearest paths. Not collective.
std::vector<GroupSpec> make_groups(
    const torch::nn::Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy);

/// Whether the group is there for GroupPolicy::parameters_apart.
bool is_apart(const GroupSpec& group, const GroupPolicy& policy);

} // namespace tessera
