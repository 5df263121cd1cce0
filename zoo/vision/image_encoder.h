// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageEncoder` is a transformer encoder over the patches of an image: ViT
// (arXiv:2010.11929).

#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/vision/image_heads.h"

#include <string>
#include <vector>

namespace tessera::zoo {

/// The hyperparameters of an `ImageEncoder`; a family fills them from its
/// config.json.
struct ImageEncoderConfig {
  PatchEmbeddingOptions patches; ///< of the base model, without a mask token
  double embedding_dropout = 0;
  NormOptions norm; ///< after the layers
  std::vector<TransformerLayerOptions> layers;
  int64_t pooler_features = 0; ///< of the base model; 0: no pooler
  std::string pooler_activation = "tanh";
  int64_t encoder_stride = 16; ///< of the masked head
  ClassifierOptions classifier;
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` (TransformerLayer),
/// `norm`, and depending on the head `pooler`, `classifier` or `decoder`
/// (PixelDecoder).
///
/// Takes pixel_values and `interpolate_pos_encoding` (one number, see
/// interpolates()); classifiers also labels, see classifier_loss(); the masked
/// head also `bool_masked_pos` [B, patches], and returns `reconstruction` [B,
/// channels, height, width]. Hidden states are those before `norm`.
class ImageEncoder : public Model {
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

  ImageEncoderConfig image_;
  ImageHead head_kind_;
  LayerContext context_;
  PatchEmbedding embeddings_{nullptr};
  TransformerLayers layers_{nullptr};
  Norm norm_{nullptr};
  Linear pooler_, classifier_;
  PixelDecoder decoder_{nullptr};
};

/// @throws tessera::Error under sequence parallelism if `tokens` is not
///     divisible over the tensor-parallel ranks of `context`.
void check_divides_tokens(const LayerContext& context, int64_t tokens);

} // namespace tessera::zoo
