// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageModel` is the base of models over the patches of images, ViT and Swin:
// their embeddings and heads.

#include "tessera/zoo/heads/classification.h"
#include "tessera/zoo/layers/linear.h"
#include "tessera/zoo/layers/norm.h"
#include "tessera/zoo/layers/patch_embedding.h"
#include "tessera/zoo/models/layered_model.h"
#include "tessera/zoo/vision/pixel_decoder.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::zoo {

enum class ImageHead {
  kBase, ///< hidden states and a pooled output per image
  kClassification,
  kMasked, ///< the pixels of masked patches
};

/// The hyperparameters of an `ImageModel`; a family fills them from its
/// config.json.
struct ImageModelConfig {
  PatchEmbeddingOptions patches; ///< of the base model, without a mask token
  double embedding_dropout = 0;
  NormOptions norm; ///< after the layers
  int64_t encoder_stride = 16; ///< of the masked head
  ClassifierOptions classifier;
  double deviation = 0.02; ///< standard deviation of initial weights
};

/// Modules: `embeddings` (PatchEmbedding), the layers, `norm`, and depending on
/// the head `classifier` or `decoder` (PixelDecoder).
///
/// Takes pixel_values and `interpolate_pos_encoding` (one number, see
/// interpolates()); classifiers also labels, see classifier_loss(); the masked
/// head also `bool_masked_pos` [B, patches], and returns `reconstruction` [B,
/// channels, height, width].
class ImageModel : public LayeredModel {
 public:
  std::unique_ptr<Head> head() override;

 protected:
  /// Constructs `embeddings`. @param costs as of LayeredModel.
  ImageModel(
      const ImageModelConfig& config,
      ImageHead head,
      const LayerContext& context,
      nlohmann::json json,
      NameTable names,
      const std::vector<pipeline::LayerCost>& costs);

  void check(const ModelInput& input) const override;

  /// Constructs what comes after the layers; for the end of a constructor.
  void make_end();
  /// The patches with positions, as between layers.
  at::Tensor embed(const ModelInput& input);
  /// Adds what the head makes of normed hidden states [B, tokens, features].
  void add_result(
      const ModelInput& input,
      const at::Tensor& last,
      ModelOutput& output);

  /// The features of an image that are classified, [B, features].
  virtual at::Tensor pooled(const at::Tensor& last) const = 0;
  /// The hidden states of patches.
  virtual at::Tensor patches_of(const at::Tensor& last) const {
    return last;
  }

  ImageModelConfig image_; ///< with a mask token if the head needs it
  ImageHead head_kind_;
  PatchEmbedding embeddings_{nullptr};
  Norm norm_{nullptr};

 private:
  Linear classifier_;
  PixelDecoder decoder_{nullptr};
};

} // namespace tessera::zoo
