// SPDX-License-Identifier: Apache-2.0
#pragma once
// `PixelDecoder` predicts pixels from features: the head of masked image
// modeling (SimMIM, arXiv:2111.09886).

#include "tessera/zoo/layers/patch_embedding.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

namespace tessera::zoo {

struct PixelDecoderOptions {
  int64_t features = 0;
  int64_t channels = 3;
  int64_t stride = 16; ///< each token yields stride x stride pixels
  double deviation = 0.02;
};

/// One linear layer applied to every token, stored as a convolution. Parameters
/// `weight` [stride^2 channels, features, 1, 1] and `bias`.
class PixelDecoderImpl : public torch::nn::Conv2dImpl {
 public:
  explicit PixelDecoderImpl(const PixelDecoderOptions& options);

  /// tokens [B, S, features], whole, of a square map -> [B, channels, height,
  /// width].
  at::Tensor forward(const at::Tensor& tokens);

 private:
  PixelDecoderOptions options_;
};
TORCH_MODULE(PixelDecoder);

/// The mean absolute error of masked pixels.
/// @param pixels [B, channels, height, width], as `reconstruction`.
/// @param mask [B, tokens] of a square map of patches, nonzero where masked.
at::Tensor masked_pixel_loss(
    const at::Tensor& pixels,
    const at::Tensor& reconstruction,
    const at::Tensor& mask,
    const ImageSize& patch);

} // namespace tessera::zoo
