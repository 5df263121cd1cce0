// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DividedExperts` holds the experts of a mixture-of-experts layer that are on
// this rank; other ranks have others.

#include <torch/nn/module.h>

#include <unordered_set>

namespace tessera::sharding {

/// This rank's experts. Only ranks of the same ParallelGroup::kSameExperts have
/// the same parameters in it; elsewhere they may have other names.
///
/// [Note: pages of divided experts] Parameters of DividedExperts form pages of
/// their own (PageSpec::of_experts), which the ranks with the same experts
/// shard among themselves (PageMeshes::experts). Every rank has as many
/// pages of experts as the others, with the same numbers, sizes and types, so
/// that all ranks follow one plan and agree about pages by their numbers;
/// parameters in the same place have the names of other experts there. Hence:
/// - values and gradients of such a page are broadcast, gathered and averaged
///   over its mesh only ([Note: gradients of experts] says why that is right);
/// - a norm adds up what the ranks of all parts have (kPartAxis);
/// - a parameter has a gradient if the one in its place has one on any rank;
/// - whole parameters are gathered for one part at a time.
class DividedExperts : public torch::nn::Module {
 public:
  DividedExperts() : Module("DividedExperts") {}
};

/// Returns whether some of the module's experts are on other ranks.
bool has_divided_experts(const torch::nn::Module& module);

/// The parameters in DividedExperts.
std::unordered_set<const c10::TensorImpl*> parameters_of_divided_experts(
    const torch::nn::Module& module);

} // namespace tessera::sharding
