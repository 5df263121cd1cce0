// SPDX-License-Identifier: Apache-2.0
#pragma once
// Transformers over windows of maps that become smaller from stage to stage:
// Swin (arXiv:2103.14030).

#include "tessera/zoo/layers/window_layer.h"
#include "tessera/zoo/models/image_encoder.h"

#include <vector>

namespace tessera::zoo {

/// What makes a Swin; its file fills it from config.json.
struct SwinModelConfig {
  PatchEmbeddingOptions patches; ///< of a base model, without a mask token
  double embedding_dropout = 0;
  /// Of all stages. A stage's last layer has the merge.
  std::vector<WindowLayerOptions> layers;
  NormOptions norm; ///< behind the layers
  int64_t encoder_stride = 32; ///< of the masked head
  ClassifierOptions classifier;
  double deviation = 0.02; ///< of fresh weights
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` (WindowLayer, counted
/// over all stages), `norm`, and by the head `classifier` or `decoder`.
///
/// Takes what ImageEncoder takes; images of any size that leaves no map smaller
/// than a window. LayerState::hidden is a map [B, H, W, features]. Hidden
/// states are the embeddings and each stage's output, also as maps
/// `reshaped_hidden_states.N` [B, features, H, W].
class SwinModel : public Model {
 public:
  /// @param json config.json, kept.
  /// @throws tessera::Error under sequence parallelism.
  SwinModel(
      const SwinModelConfig& config,
      ImageHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

 protected:
  void check(const ModelInput& input) const override;
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;

 private:
  void make_end();
  at::Tensor embed(const ModelInput& input);
  bool begins_stage(int layer) const;

  SwinModelConfig swin_;
  ImageHead head_kind_;
  LayerContext context_;
  PatchEmbedding embeddings_{nullptr};
  WindowLayers layers_{nullptr};
  Norm norm_{nullptr};
  Linear classifier_;
  PixelDecoder decoder_{nullptr};
};

} // namespace tessera::zoo
