// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Experts` is a mixture-of-experts feed-forward layer.

#include "tessera/sharding/expert_parallel/expert_router.h"
#include "tessera/zoo/layers/feed_forward.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::zoo {

struct ExpertsOptions {
  FeedForwardOptions expert; ///< options of each expert
  int64_t experts = 0;
  int64_t experts_per_token = 0;
  /// Normalizes the weights of a token's experts to sum to 1.
  bool normalise = false;
  /// See RouterOptions::capacity_factor. A dropped token passes through
  /// unchanged if the layer adds the result to its input. Training mode only:
  /// in evaluation mode no token is dropped, whatever else is in the batch.
  std::optional<double> capacity_factor;
  /// Keeps the routing of each forward for take_routing().
  bool keep_routing = false;
  /// A shared expert that every token uses, weighted by a sigmoid gate of its
  /// own.
  std::optional<FeedForwardOptions> shared;
};

/// The routing decided by a router.
struct RoutedTokens {
  at::Tensor logits; ///< [tokens, experts]
  sharding::ExpertRouting routing;
};

/// sum over a token's best experts of softmax(router x)_e expert_e(x)
/// (arXiv:1701.06538, arXiv:2101.03961), plus the shared expert. With a
/// tensor-parallel group, every expert is partitioned as a FeedForward, and all
/// ranks of the group send it the same tokens: those of whole sequences.
///
/// With an expert group each rank holds and registers some of the experts,
/// under their numbers in the whole model: `experts.N`. Tokens are sent to the
/// ranks that hold their experts and back; see apply_experts(), also for how to
/// treat gradients. Router and shared expert are on every rank.
class ExpertsImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error if a token uses no expert or more than there are,
  ///     if the capacity factor is not positive, or if the number of experts is
  ///     not divisible over the expert group.
  ExpertsImpl(const LayerContext& between, const ExpertsOptions& options);

  /// [..., features] between layers -> the same. Synchronizes with the device,
  /// because the number of tokens per expert is not known in advance.
  /// Collective with a group.
  at::Tensor forward(const at::Tensor& between);

  /// The routing of the last forward; can be taken once. Needs
  /// ExpertsOptions::keep_routing.
  /// @throws tessera::Error if there was no forward, or its gradients are lost
  ///     because the layer is recomputed in backward.
  RoutedTokens take_routing();

 private:
  LayerContext context_;
  ExpertsOptions options_;
  Linear router_;
  std::vector<FeedForward> experts_; ///< those on this rank
  FeedForward shared_{nullptr};
  Linear shared_gate_;
  RoutedTokens last_;
};
TORCH_MODULE(Experts);

} // namespace tessera::zoo
