// SPDX-License-Identifier: Apache-2.0
#pragma once
// Images to sequences of features: one token for each patch
// (arXiv:2010.11929).

#include "tessera/zoo/layers/norm.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// Of images in pixels, of maps in patches.
struct ImageSize {
  int64_t height = 0;
  int64_t width = 0;

  int64_t area() const {
    return height * width;
  }
  bool operator==(const ImageSize&) const = default;
};

/// The last two dimensions of [..., height, width].
ImageSize image_size_of(const at::Tensor& pixels);

enum class PatchPositions {
  kNone,
  kLearned,
  kFixed, ///< grid_positions(), a parameter without a gradient
};

/// Sines and cosines of a patch's column, then of its row; 0 for the class
/// token: [1, 1 + patches, features]. features are a multiple of 4.
at::Tensor grid_positions(const ImageSize& grid, int64_t features);

struct PatchEmbeddingOptions {
  int64_t channels = 3;
  ImageSize image; ///< that positions are for
  ImageSize patch;
  int64_t features = 0;
  bool class_token = true; ///< before the patches
  bool mask_token = false; ///< in place of masked patches
  PatchPositions positions = PatchPositions::kLearned;
  bool learns_projection = true; ///< otherwise it gets no gradient
  /// Images that patches do not divide get zeros below and to the right.
  bool pads = false;
  std::optional<NormOptions> norm; ///< of patches, before they are masked
  double deviation = 0.02; ///< of fresh weights

  /// How many patches an image of that size has.
  ImageSize grid(const ImageSize& size) const;
  /// Patches of an image of the usual size, and the class token.
  int64_t tokens() const;
};

/// Everything is whole on every rank. Submodules `projection` (a convolution
/// whose windows are the patches) and `norm`; parameters `class_token` and
/// `mask_token` [1, 1, features], `positions` [1, tokens, features], the class
/// token's first.
class PatchEmbeddingImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error when a patch is larger than the image, or, without
  ///     `pads`, does not divide it; when there are more than 2^20 patches.
  explicit PatchEmbeddingImpl(const PatchEmbeddingOptions& options);

  /// @throws tessera::Error unless pixels are [B, channels, height, width], not
  ///     empty, and of a size that this embedding takes: the options', or with
  ///     `interpolate` any that patches divide.
  void check(const at::Tensor& pixels, bool interpolate) const;

  /// pixels [B, channels, height, width] -> [B, patches, features], row by row,
  /// without positions and class token.
  at::Tensor patches(const at::Tensor& pixels);

  /// Positions of an image's tokens: [1, tokens, features]. Those of patches
  /// are interpolated (bicubic) where it has another number of them.
  at::Tensor positions(const ImageSize& image) const;

  /// class_token + its position, for every row: [rows, 1, features].
  at::Tensor class_tokens(int64_t rows) const;

  /// All of it: [B, tokens, features].
  /// @param mask undefined, or [B, patches], not 0 where the mask token stands
  ///     in for a patch.
  at::Tensor forward(const at::Tensor& pixels, const at::Tensor& mask = {});

 private:
  PatchEmbeddingOptions options_;
  torch::nn::Conv2d projection_{nullptr};
  Norm norm_{nullptr};
  at::Tensor class_token_, mask_token_, positions_;
};
TORCH_MODULE(PatchEmbedding);

} // namespace tessera::zoo
