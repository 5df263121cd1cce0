// SPDX-License-Identifier: Apache-2.0
#pragma once
// `SwinModel` is the Swin transformer (arXiv:2103.14030): windowed attention
// over maps that shrink from one Swin stage to the next.

#include "tessera/zoo/layers/window_layer.h"
#include "tessera/zoo/vision/image_model.h"

#include <vector>

namespace tessera::zoo {

struct SwinModelConfig : ImageModelConfig {
  /// Of all Swin stages. The last layer of a Swin stage does the merge.
  std::vector<WindowLayerOptions> layers;
};

/// An ImageModel with modules `layers.N` (WindowLayer, numbered over all Swin
/// stages).
///
/// Takes images of any size for which no map is smaller than a window.
/// LayerState::hidden is a map [B, H, W, features]. Hidden states are the
/// embeddings and the output of each Swin stage, also returned as maps
/// `reshaped_hidden_states.N` [B, features, H, W].
class SwinModel : public ImageModel {
 public:
  /// @param json the config.json, which the model keeps.
  /// @throws tessera::Error under sequence parallelism.
  SwinModel(
      const SwinModelConfig& config,
      ImageHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names);

 protected:
  LayerState run_layers(
      const ModelInput& input,
      LayerState state,
      int begin,
      int end) override;
  ModelOutput output(const ModelInput& input, const LayerState& state) override;
  at::Tensor pooled(const at::Tensor& last) const override {
    return last.mean(1);
  }

 private:
  bool begins_stage(int layer) const;

  std::vector<bool> merges_; ///< of each layer
  WindowLayers layers_{nullptr};
};

} // namespace tessera::zoo
