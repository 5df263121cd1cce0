// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters that several pipeline stages have, such as an embedding that is
// also the output head, stay equal.

#include "tessera/runtime/comm/init.h"

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

namespace tessera::sharding {

class Pager;

/// Finds them: trainable parameters of one name on several pipeline stages are
/// one parameter. Each stage has a copy on a page of its own, sharded in the
/// same way; the copies start from the values of the first one and are updated
/// with the sum of their gradients, so that they stay bitwise equal. In norms
/// only the first one counts.
///
/// Collective over `ranks`; blocks until all have called.
/// @param ranks with the same part of each pipeline stage, including this one,
///   in the order of the stages.
/// @return by name, those of the ranks that have it; only what this one has.
/// @throws tessera::Error when the shape or dtype of one differs between
///   pipeline stages.
std::map<std::string, std::vector<int>> find_tied_parameters(
    World& world,
    const std::vector<int>& ranks,
    const torch::nn::Module& module);

/// Copies the values of the first copies to the others. Collective over the
/// pipeline stages.
void copy_tied_values(Pager& pager);

/// Sums the settled gradients of all copies, once per step: later calls do
/// nothing. Collective over the pipeline stages.
void add_tied_gradients(Pager& pager);

} // namespace tessera::sharding
