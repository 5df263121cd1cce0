// SPDX-License-Identifier: Apache-2.0
#pragma once
// Layers of transformers whose attention stays within windows of a map
// (arXiv:2103.14030).

#include "tessera/sharding/transformer_block_list.h"
#include "tessera/zoo/layers/attention.h"
#include "tessera/zoo/layers/feed_forward.h"
#include "tessera/zoo/layers/patch_embedding.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace tessera::zoo {

struct WindowLayerOptions {
  NormOptions norm;
  AttentionOptions attention; ///< within a window; it gets a bias
  FeedForwardOptions feed_forward;
  int64_t window = 7; ///< its side
  /// Of the windows, in both directions; maps that are as small as a window
  /// have none.
  int64_t shift = 0;
  double dropout = 0; ///< of what each half adds, while training
  double drop_path = 0; ///< of what attention adds
  /// Behind it, four neighbours become one, of twice as many features.
  bool merges = false;
  double deviation = 0.02; ///< of a fresh bias table and a merge
};

/// Four neighbours of a map to one: norm, then a linear layer of all their
/// features. Submodules `norm` and `reduction`.
class PatchMergingImpl : public torch::nn::Module {
 public:
  PatchMergingImpl(
      const LayerContext& context,
      int64_t features,
      double deviation);

  /// [B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), 2 C], with zeros below and
  /// to the right of maps with odd sides.
  at::Tensor forward(const at::Tensor& map);

 private:
  Norm norm_{nullptr};
  Linear reduction_;
};
TORCH_MODULE(PatchMerging);

/// x + attention(norm x), then x + feed_forward(norm x), then the merge.
/// Submodules `attention`, `attention_norm`, `feed_forward`,
/// `feed_forward_norm`, `merge`; parameter `position_bias`
/// [(2 window - 1)^2, heads], whole on every rank.
class WindowLayerImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error under sequence parallelism: windows need whole
  ///     maps.
  WindowLayerImpl(
      const LayerContext& context,
      const WindowLayerOptions& options);

  /// map [B, H, W, features] -> the same, or what the merge makes of it.
  /// Collective with a group.
  /// @throws tessera::Error when the map is smaller than a window.
  at::Tensor forward(const at::Tensor& map);

 private:
  /// Of this rank's heads: [1 or all windows, heads, window^2, window^2].
  /// @param shift of the windows of a padded map.
  at::Tensor bias(const ImageSize& padded, int64_t shift, int64_t rows) const;
  at::Tensor attend(const at::Tensor& map);

  LayerContext context_;
  WindowLayerOptions options_;
  Norm attention_norm_{nullptr}, feed_forward_norm_{nullptr};
  Attention attention_{nullptr};
  FeedForward feed_forward_{nullptr};
  PatchMerging merge_{nullptr};
  at::Tensor position_bias_;
};
TORCH_MODULE(WindowLayer);

using WindowLayers = TransformerBlockList<WindowLayer>;

} // namespace tessera::zoo
