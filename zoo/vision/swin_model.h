// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SwinModel` is the Swin transformer (arXiv:2103.14030): windowed attention
// over maps that shrink from one Swin stage to the next.

#include "tessera/zoo/layers/window_layer.h"
#include "tessera/zoo/vision/image_encoder.h"

#include <vector>

namespace tessera::zoo {

/// The hyperparameters of a `SwinModel`, filled from config.json.
struct SwinModelConfig {
  PatchEmbeddingOptions patches; ///< of the base model, without a mask token
  double embedding_dropout = 0;
  /// Of all Swin stages. The last layer of a Swin stage does the merge.
  std::vector<WindowLayerOptions> layers;
  NormOptions norm; ///< after the layers
  int64_t encoder_stride = 32; ///< of the masked head
  ClassifierOptions classifier;
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` (WindowLayer, numbered
/// over all Swin stages), `norm`, and depending on the head `classifier` or
/// `decoder`.
///
/// Takes the inputs of ImageEncoder, with images of any size for which no map
/// is smaller than a window. LayerState::hidden is a map [B, H, W, features].
/// Hidden states are the embeddings and the output of each Swin stage, also
/// returned as maps `reshaped_hidden_states.N` [B, features, H, W].
class SwinModel : public Model {
 public:
  /// @param json the config.json, which the model keeps.
  /// @throws tessera::Error under sequence parallelism.
  SwinModel(
      const SwinModelConfig& config,
      ImageHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

  std::unique_ptr<Head> head() override;

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
