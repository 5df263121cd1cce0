// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DividedExperts` holds the experts of a mixture-of-experts layer that are on
// this rank; other ranks have others.

#include "tessera/sharding/parameter_census.h"

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace tessera::sharding {

/// This rank's experts. Only ranks of the same ParallelGroup::kSameExperts have
/// the same parameters in it; elsewhere they may have other names.
class DividedExperts : public torch::nn::Module {
 public:
  DividedExperts() : Module("DividedExperts") {}
};

/// [Note: engines and divided experts] An engine shards all of its parameters
/// over the same ranks. Experts are sharded over the ranks that have the same
/// experts, which are fewer, by an engine of their own: one engine wraps
/// divided_experts_of() the model, another one wraps the model and ignores
/// is_divided_experts(). ExpertEngines of `engine` combines the two.

/// Returns whether some of the module's experts are on other ranks.
bool has_divided_experts(const torch::nn::Module& module);

/// Predicate for GroupPolicy::ignored of the engine that wraps the other
/// parameters.
bool is_divided_experts(
    const std::string& path,
    const torch::nn::Module& module);

/// Returns a module with all DividedExperts of `module`, under their names in
/// it, and nothing else. It is the same on all ranks that have the same
/// experts.
std::shared_ptr<torch::nn::Module> divided_experts_of(
    const torch::nn::Module& module);

/// @throws tessera::Error, with a remedy, when an engine over `module` would
///   shard experts and other parameters over the same ranks.
void check_experts_apart(
    const torch::nn::Module& module,
    const IgnoredParameters& ignored);

} // namespace tessera::sharding
