// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageEncoder` is a transformer encoder over the patches of an image: ViT
// (arXiv:2010.11929).

#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/vision/image_model.h"

#include <string>
#include <vector>

namespace tessera::zoo {

struct ImageEncoderConfig : ImageModelConfig {
  std::vector<TransformerLayerOptions> layers;
  int64_t pooler_features = 0; ///< of the base model; 0: no pooler
  std::string pooler_activation = "tanh";
};

/// An ImageModel with modules `layers.N` (TransformerLayer) and, in the base
/// model, `pooler`. Hidden states are those before `norm`.
class ImageEncoder : public ImageModel {
 public:
  /// @param json the config.json, which the model keeps.
  /// @throws tessera::Error if the number of tokens is not divisible over the
  ///     tensor-parallel ranks, under sequence parallelism.
  ImageEncoder(
      const ImageEncoderConfig& config,
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
  /// The class token.
  at::Tensor pooled(const at::Tensor& last) const override {
    return last.select(1, 0);
  }
  at::Tensor patches_of(const at::Tensor& last) const override {
    return last.slice(1, 1);
  }

 private:
  bool has_pooler_;
  Activation pooler_activation_;
  TransformerLayers layers_{nullptr};
  Linear pooler_;
};

} // namespace tessera::zoo
