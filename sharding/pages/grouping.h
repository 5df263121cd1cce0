// SPDX-License-Identifier: Apache-2.0
#pragma once
// `group_parameters()` divides parameters into groups (pages) that are
// unsharded, reduced and resharded together; by default, each block of a
// repeated stack is a group.

#include "tessera/sharding/groups/group_policy.h"
#include "tessera/sharding/groups/module_choices.h"
#include "tessera/sharding/groups/parameter_census.h"
#include "tessera/sharding/pages/page_spec.h"

#include <torch/nn/module.h>

#include <set>
#include <string>
#include <vector>

namespace tessera::sharding {

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
/// @return the pages without a layout; see lay_out().
std::vector<PageSpec> group_parameters(
    const torch::nn::Module& module,
    const std::vector<ParameterRecord>& parameters,
    const GroupPolicy& policy,
    const ModuleChoices& choices,
    const std::set<std::string>& apart = {});

} // namespace tessera::sharding
