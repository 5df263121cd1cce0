// SPDX-License-Identifier: Apache-2.0
#pragma once
// A feed-forward half of which each token uses some parts (mixture of experts).

#include "tessera/sharding/parallel/expert_router.h"
#include "tessera/zoo/layers/feed_forward.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::zoo {

struct ExpertsOptions {
  FeedForwardOptions expert; ///< of each of them
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  /// The weights of a token's experts are made to add up to 1.
  bool normalise = false;
  /// See RouterOptions::capacity_factor; what is dropped goes on as it is where
  /// the layer adds the result to its input.
  std::optional<double> capacity_factor;
  /// What each forward decided is kept for take_routing().
  bool keep_routing = false;
  /// One more that every token uses, weighed by a sigmoid of its own.
  std::optional<FeedForwardOptions> shared;
};

/// What a router has decided.
struct RoutedTokens {
  at::Tensor logits; ///< [tokens, experts]
  ExpertRouting routing;
};

/// sum over a token's best experts of softmax(router x)_e expert_e(x)
/// (arXiv:1701.06538, arXiv:2101.03961), and the shared one. With a
/// tensor-parallel group, every expert is divided as a FeedForward; all of its
/// ranks send it the same tokens: those of whole sequences.
///
/// With an expert group each rank has, and registers, its part of the experts
/// under their numbers in the whole: `experts.N`. Tokens go to the ranks that
/// have their experts and come back; see apply_experts(), also for what to do
/// with gradients. Router and shared expert are on every rank.
class ExpertsImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error when a token uses none or more than there are, the
  ///     capacity factor is no positive number, or the expert group does not
  ///     divide them.
  ExpertsImpl(const LayerContext& between, const ExpertsOptions& options);

  /// [..., features] between layers -> the same. Waits for the device: how many
  /// tokens an expert has is not known before. Collective with a group.
  at::Tensor forward(const at::Tensor& between);

  /// Of the last forward, once; needs ExpertsOptions::keep_routing.
  /// @throws tessera::Error when there was none, or its gradients are lost
  ///     because the layer is to be recomputed in backward.
  RoutedTokens take_routing();

 private:
  LayerContext context_;
  ExpertsOptions options_;
  Linear router_;
  std::vector<FeedForward> experts_; ///< that are here
  FeedForward shared_{nullptr};
  Linear shared_gate_;
  RoutedTokens last_;
};
TORCH_MODULE(Experts);

} // namespace tessera::zoo
