// SPDX-License-Identifier: Apache-2.0
#pragma once
// A feed-forward half of which each token uses some parts (mixture of experts).

#include "tessera/zoo/layers/feed_forward.h"

#include <torch/nn/modules/container/modulelist.h>

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
  /// One more that every token uses, weighed by a sigmoid of its own.
  std::optional<FeedForwardOptions> shared;
};

/// sum over a token's best experts of softmax(router x)_e expert_e(x)
/// (arXiv:1701.06538, arXiv:2101.03961), and the shared one. Experts that no
/// token chose compute nothing. With a group, every expert is divided as a
/// FeedForward; which tokens it gets is the same on all ranks.
class ExpertsImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error when a token uses none or more than there are, and
  ///     for sequence parallelism, which is not implemented here.
  ExpertsImpl(const LayerContext& context, const ExpertsOptions& options);

  /// x [..., features] -> the same. Waits for the device: how many tokens an
  /// expert has is not known before.
  at::Tensor forward(const at::Tensor& x);

 private:
  ExpertsOptions options_;
  Linear router_;
  std::vector<FeedForward> experts_;
  FeedForward shared_{nullptr};
  Linear shared_gate_;
};
TORCH_MODULE(Experts);

} // namespace tessera::zoo
