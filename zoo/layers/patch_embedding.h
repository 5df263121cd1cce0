// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PatchEmbedding` maps images to sequences with one token per patch
// (arXiv:2010.11929).

#include "tessera/zoo/layers/norm.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// The size of an image in pixels, or of a map in patches.
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
  kFixed, ///< grid_positions(), as a parameter without gradient
};

/// Sines and cosines of a patch's column, then of its row; 0 for the class
/// token: [1, 1 + patches, features]. `features` must be a multiple of 4.
at::Tensor grid_positions(const ImageSize& grid, int64_t features);

struct PatchEmbeddingOptions {
  int64_t channels = 3;
  ImageSize image; ///< the size that positions are made for
  ImageSize patch;
  int64_t features = 0;
  bool class_token = true; ///< precedes the patches
  bool mask_token = false; ///< replaces masked patches
  PatchPositions positions = PatchPositions::kLearned;
  bool learns_projection = true; ///< false: the projection gets no gradient
  /// Images whose size is not a multiple of the patch size are padded with
  /// zeros at the bottom and right.
  bool pads = false;
  std::optional<NormOptions> norm; ///< of patches, before masking
  double deviation = 0.02; ///< standard deviation of initial weights

  /// The number of patches of an image of that size, per dimension.
  ImageSize grid(const ImageSize& size) const;
  /// The number of tokens of an image of size `image`: patches and class token.
  int64_t tokens() const;
};

/// All parameters are whole on every rank. Submodules `projection` (a
/// convolution with one window per patch) and `norm`; parameters `class_token`
/// and `mask_token` [1, 1, features], and `positions` [1, tokens, features],
/// that of the class token first.
class PatchEmbeddingImpl : public torch::nn::Module {
 public:
  /// @throws tessera::Error if a patch is larger than the image; if, without
  ///     `pads`, the image size is not a multiple of the patch size; if there
  ///     are more than 2^20 patches.
  explicit PatchEmbeddingImpl(const PatchEmbeddingOptions& options);

  /// @throws tessera::Error unless pixels are [B, channels, height, width], not
  ///     empty, and of a supported size: the options' size, or with
  ///     `interpolate` any multiple of the patch size.
  void check(const at::Tensor& pixels, bool interpolate) const;

  /// pixels [B, channels, height, width] -> [B, patches, features], row by row,
  /// without positions and class token.
  at::Tensor patches(const at::Tensor& pixels);

  /// The position embeddings of an image's tokens: [1, tokens, features]. Those
  /// of patches are interpolated (bicubic) if their number differs from that of
  /// PatchEmbeddingOptions::image.
  at::Tensor positions(const ImageSize& image) const;

  /// class_token plus its position, for every sample: [rows, 1, features].
  at::Tensor class_tokens(int64_t rows) const;

  /// The whole embedding: [B, tokens, features].
  /// @param mask undefined, or [B, patches], nonzero where the mask token
  ///     replaces a patch.
  at::Tensor forward(const at::Tensor& pixels, const at::Tensor& mask = {});

 private:
  PatchEmbeddingOptions options_;
  torch::nn::Conv2d projection_{nullptr};
  Norm norm_{nullptr};
  at::Tensor class_token_, mask_token_, positions_;
};
TORCH_MODULE(PatchEmbedding);

} // namespace tessera::zoo
