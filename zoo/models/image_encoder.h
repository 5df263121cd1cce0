// SPDX-License-Identifier: Apache-2.0
#pragma once
// Transformers that see an image as a sequence of patches: ViT
// (arXiv:2010.11929).

#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/layers/transformer_layer.h"
#include "tessera/zoo/models/image_heads.h"

#include <string>
#include <vector>

namespace tessera::zoo {

/// What makes an image encoder; a family fills it from its config.json.
struct ImageEncoderConfig {
  PatchEmbeddingOptions patches; ///< of a base model, without a mask token
  double embedding_dropout = 0;
  NormOptions norm; ///< behind the layers
  std::vector<TransformerLayerOptions> layers;
  int64_t pooler_features = 0; ///< of a base model; 0: it has none
  std::string pooler_activation = "tanh";
  int64_t encoder_stride = 16; ///< of the masked head
  ClassifierOptions classifier;
  double deviation = 0.02; ///< of fresh weights
};

/// Modules: `embeddings` (PatchEmbedding), `layers.N` (TransformerLayer),
/// `norm`, and by the head `pooler`, `classifier` or `decoder` (PixelDecoder).
///
/// Takes pixel_values and `interpolate_pos_encoding` (one number, see
/// interpolates()); classifiers labels as classifier_loss(); the masked head
/// `bool_masked_pos` [B, patches]. The masked head's result is
/// `reconstruction` [B, channels, height, width]. Hidden states are those
/// before `norm`.
class ImageEncoder : public Model {
 public:
  /// @param json config.json, kept.
  /// @throws tessera::Error where tensor-parallel ranks are to divide the
  ///     tokens between layers and cannot.
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

/// @throws tessera::Error where the tensor-parallel ranks of `context` are to
///     divide sequences of so many tokens and cannot: ranks must divide them.
void check_divides_tokens(const LayerContext& context, int64_t tokens);

} // namespace tessera::zoo
