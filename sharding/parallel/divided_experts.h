// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters that not all ranks have: the experts of a rank.

#include "tessera/sharding/parameter_census.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace tessera {

/// The experts that a rank has of more. Whatever is registered in it is another
/// rank's only if that rank is in the same ParallelGroup::kSameExperts, and may
/// have other names elsewhere.
class DividedExperts : public torch::nn::Module {
 public:
  DividedExperts() : Module("DividedExperts") {}
};

/// [Note: engines and divided experts] An engine divides all of its parameters
/// over the same ranks. Experts are divided over the ranks that have the same
/// ones, which are fewer, by an engine of their own: one over
/// divided_experts_of the model, beside one that leaves is_divided_experts()
/// out. ExpertEngines of `engine` is both in one.

/// Whether some of the module's experts are on other ranks.
bool has_divided_experts(const torch::nn::Module& module);

/// For GroupPolicy::ignored: what an engine of the other parameters leaves out.
bool is_divided_experts(
    const std::string& path,
    const torch::nn::Module& module);

/// All DividedExperts of `module`, under the names that they have in it, and
/// nothing else. On ranks that have the same experts these are the same.
std::shared_ptr<torch::nn::Module> divided_experts_of(
    const torch::nn::Module& module);

/// @throws tessera::Error when an engine over `module` would divide experts and
///     other parameters over the same ranks, saying what to do.
void check_experts_apart(
    const torch::nn::Module& module,
    const IgnoredParameters& ignored);

} // namespace tessera
