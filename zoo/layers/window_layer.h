// SPDX-License-Identifier: Apache-2.0
#pragma once
// `WindowLayer` is a Swin transformer layer, with attention inside windows of a
// feature map (arXiv:2103.14030).

#include "tessera/sharding/checkpointing/transformer_block_list.h"
#include "tessera/zoo/layers/attention.h"
#include "tessera/zoo/layers/feed_forward.h"
#include "tessera/zoo/layers/patch_embedding.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace tessera::zoo {

struct WindowLayerOptions {
  NormOptions norm;
  AttentionOptions attention; ///< within a window, with a position bias
  FeedForwardOptions feed_forward;
  int64_t window = 7; ///< side length
  /// The shift of the windows in both directions; not applied to maps that are
  /// as small as a window.
  int64_t shift = 0;
  double dropout = 0; ///< of the output of each half, in training mode
  double drop_path = 0; ///< of the attention branch
  /// Followed by a merge: 2 x 2 neighbors become one, with twice as many
  /// features.
  bool merges = false;
  /// standard deviation of initial bias tables and merges
  double deviation = 0.02;
};

/// `PatchMerging` merges 2 x 2 neighbors of a map into one: a norm, then a
/// linear layer on their concatenated features. Submodules `norm` and
/// `reduction`.
class PatchMergingImpl : public torch::nn::Module {
 public:
  PatchMergingImpl(
      const LayerContext& context,
      int64_t features,
      double deviation);

  /// [B, H, W, C] -> [B, ceil(H / 2), ceil(W / 2), 2 C], with zeros at the
  /// bottom and right of maps with odd sides.
  at::Tensor forward(const at::Tensor& map);

 private:
  Norm norm_{nullptr};
  Linear reduction_;
};
TORCH_MODULE(PatchMerging);

/// x + attention(norm x), then x + feed_forward(norm x), then the merge.
/// Submodules `attention`, `attention_norm`, `feed_forward`,
/// `feed_forward_norm`, `merge`; parameter `position_bias` [(2 window - 1)^2,
/// heads], whole on every rank.
class WindowLayerImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error under sequence parallelism: windows need whole
  ///     maps.
  WindowLayerImpl(
      const LayerContext& context,
      const WindowLayerOptions& options);

  /// map [B, H, W, features] -> the same, or the result of the merge.
  /// Collective with a group.
  /// @throws tessera::Error if the map is smaller than a window.
  at::Tensor forward(const at::Tensor& map);

  /// As those of TransformerLayer.
  void recompute_attention(bool again) {
    attention_->recomputes_core = again;
  }
  Communicator* same_hidden() const {
    return context_.same_between();
  }

 private:
  /// The bias of this rank's heads: [1 or all windows, heads, window^2,
  /// window^2].
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
