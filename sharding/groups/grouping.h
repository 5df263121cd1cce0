// SPDX-License-Identifier: Apache-2.0
#pragma once
// `make_groups()` divides parameters into groups (pages) that are unsharded,
// reduced and resharded together; by default, each block of a repeated stack is
// a group.

#include "tessera/sharding/groups/group_policy.h"
#include "tessera/sharding/groups/module_choices.h"
#include "tessera/sharding/groups/parameter_census.h"

#include <torch/nn/module.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera::sharding {

/// Parameters of one group; all have the same dtype and requires_grad, and all
/// or none are of divided experts, and are sent as they are.
struct GroupSpec {
  std::string name; ///< path of the module, e.g. "encoder.layer.3"
  std::vector<ParameterRecord> parameters; ///< not empty
  /// The parameters come from several places in the model, so their gradients
  /// do not arrive together.
  bool scattered = false;
  /// Indices, in registration order, of the blocks that the parameters belong
  /// to. Groups that share a block are used together: they hold parameters of
  /// one block that differ in dtype, requires_grad or of_experts.
  std::vector<int> blocks = {};
  /// As in ModuleOptions.
  std::optional<bool> reshard_after_forward = {};
  std::optional<int> zero_stage = {};
  bool is_apart = false; ///< a parameter that is a group of its own
  bool of_experts = false; ///< as ParameterRecord::of_experts
  bool full_precision = false; ///< as in ModuleOptions
};

/// Divides the parameters of `module` into groups, in registration order. By
/// default:
/// - children of a container (Sequential, ModuleList, ModuleDict) and siblings
///   of one composite type are blocks, each a group; blocks are not divided
///   further;
/// - other children that contain no blocks are a group each; modules that
///   contain blocks are transparent;
/// - small groups are merged;
/// - storages that several groups use (tied or sliced weights) form groups of
///   their own;
/// - modules that derive from ConfiguredModule are blocks;
/// - each group is then split by dtype, requires_grad, whether its parameters
///   are of divided experts and whether they are sent as they are; small parts
///   of several groups, such as float32 norms, are combined.
///
/// `choices` may name the blocks instead, among other things. Groups are merged
/// only if the same choices apply to them.
/// @param parameters result of take_parameter_census(); parameters that are not
///   listed are in no group.
/// @param apart names of parameters that are groups of their own too.
/// @throws tessera::Error as check_group_policy() and
///   ModuleChoices::check_all_used(). Not collective.
std::vector<GroupSpec> make_groups(
    const torch::nn::Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy,
    const ModuleChoices& choices,
    const std::set<std::string>& apart = {});

} // namespace tessera::sharding
