// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FeedForward` is the feed-forward (MLP) half of a transformer layer.

#include "tessera/zoo/layers/activation.h"
#include "tessera/zoo/layers/linear.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>

namespace tessera::zoo {

struct FeedForwardOptions {
  int64_t features = 0;
  int64_t inner = 0;
  std::string activation = "gelu";
  /// down(act(gate x) * up x) in place of down(act(up x)) (arXiv:2002.05202).
  bool gated = false;
  bool bias = true;
  double dropout = 0; ///< of the inner features, in training mode
  double deviation = 0.02; ///< standard deviation of initial weights
  double output_deviation = 0; ///< of `down`; 0: as the others
  bool length_scale = false; ///< of all projections; see LinearOptions
};

/// Column-parallel projections `up` (and `gate`), and row-parallel `down`.
class FeedForwardImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error on an unknown activation.
  FeedForwardImpl(
      const LayerContext& context,
      const FeedForwardOptions& options);

  /// x [..., features] between layers -> the same. Collective with a group.
  at::Tensor forward(const at::Tensor& x);

 private:
  LayerContext context_;
  FeedForwardOptions options_;
  Activation activation_;
  Linear gate_, up_, down_;
};
TORCH_MODULE(FeedForward);

} // namespace tessera::zoo
