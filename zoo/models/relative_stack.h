// SPDX-License-Identifier: Apache-2.0
#pragma once
// Transformer layers that share one bias of attention, looked up by the
// distance of key and query, and a norm behind them: one half of T5
// (arXiv:1910.10683).

#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/nn/modules/embedding.h>

#include <vector>

namespace tessera::zoo {

struct RelativeStackOptions {
  std::vector<TransformerLayerOptions>
      layers; ///< all of them, with equal heads
  int before = 0; ///< layers of the model before these
  RelativeBuckets buckets;
  double bias_deviation = 1; ///< of a fresh bias
  NormOptions norm;
  double dropout = 0; ///< of what comes out, while training
};

/// Modules `layers.N`, `relative_bias` [buckets, heads] with the first layer,
/// whole on every rank, and `norm` with the last one.
class RelativeStackImpl : public torch::nn::Module {
 public:
  /// @param own numbers of the layers that are made, ascending; at least one.
  RelativeStackImpl(
      const LayerContext& context,
      const RelativeStackOptions& options,
      const std::vector<int>& own);

  /// The bias that LayerState::bias hands on, of `length` tokens behind `past`
  /// others: [1, heads, length, past + length]. To be called where the first
  /// layer is.
  at::Tensor bias(int64_t length, const at::Device& device, int64_t past = 0);

  /// The layers [begin, end), with state.bias.
  void run(
      int begin,
      int end,
      LayerInput input,
      bool entered,
      LayerState& state);

  /// What comes behind the last layer, between layers.
  at::Tensor finish(const at::Tensor& hidden);

 private:
  LayerContext context_;
  RelativeStackOptions options_;
  TransformerLayers layers_{nullptr};
  torch::nn::Embedding relative_bias_{nullptr};
  Norm norm_{nullptr};
};
TORCH_MODULE(RelativeStack);

} // namespace tessera::zoo
