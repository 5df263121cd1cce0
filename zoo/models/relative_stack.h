// SPDX-License-Identifier: Apache-2.0
#pragma once
// `RelativeStack` is one half of T5 (arXiv:1910.10683): transformer layers that
// share one relative attention bias, followed by a norm. In CPM-3 the bias also
// depends on segments.

#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/positions.h"
#include "tessera/zoo/models/layer_stack.h"

#include <torch/nn/modules/embedding.h>

#include <vector>

namespace tessera::zoo {

struct RelativeStackOptions {
  std::vector<TransformerLayerOptions> layers; ///< all layers, with equal heads
  int before = 0; ///< number of layers of the model before these
  RelativeBuckets buckets;
  /// Above 0: relative_bias has a row for each pair of segments, after those of
  /// the buckets.
  int64_t segments = 0;
  double bias_deviation = 1; ///< standard deviation of the initial bias
  NormOptions norm;
  double dropout = 0; ///< of the output, in training mode
};

/// Modules `layers.N`, `relative_bias` [buckets + segments^2, heads] with the
/// first layer, whole on every rank, and `norm` with the last layer.
class RelativeStackImpl : public torch::nn::Module {
 public:
  /// @param numbers of the layers to construct, ascending; at least one.
  RelativeStackImpl(
      const LayerContext& context,
      const RelativeStackOptions& options,
      const std::vector<int>& numbers);

  /// The attention bias, passed on in LayerState::bias, of `length` tokens
  /// after `past` others: [1, heads, length, past + length]. Call it where the
  /// first layer is.
  at::Tensor bias(int64_t length, const at::Device& device, int64_t past = 0);

  /// The same from the rows of relative_bias for each query and key: int64
  /// [B or 1, Q, K] -> [B or 1, heads, Q, K].
  at::Tensor bias(const at::Tensor& rows);

  /// Runs the layers [begin, end), with state.bias.
  void run(
      int begin,
      int end,
      LayerInput input,
      bool entered,
      LayerState& state);

  /// The norm and dropout after the last layer; laid out as between layers.
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
