// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/vision/pixel_decoder.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <cmath>

namespace tessera::zoo {

namespace {

int64_t side_of(int64_t tokens) {
  const auto side = std::llround(std::sqrt(static_cast<double>(tokens)));
  TESSERA_CHECK(
      side * side == tokens,
      "masked image modeling needs square images; this one has {} patches",
      tokens);
  return side;
}

} // namespace

PixelDecoderImpl::PixelDecoderImpl(const PixelDecoderOptions& options)
    : Conv2dImpl(torch::nn::Conv2dOptions(
          options.features,
          options.stride * options.stride * options.channels,
          1)),
      options_(options) {
  const torch::NoGradGuard no_grad;
  weight.normal_(0, options.deviation);
  bias.zero_();
}

at::Tensor PixelDecoderImpl::forward(const at::Tensor& tokens) {
  const int64_t side = side_of(tokens.size(1));
  const at::Tensor map = tokens.transpose(1, 2).unflatten(2, {side, side});
  return at::pixel_shuffle(Conv2dImpl::forward(map), options_.stride);
}

at::Tensor masked_pixel_loss(
    const at::Tensor& pixels,
    const at::Tensor& reconstruction,
    const at::Tensor& mask,
    const ImageSize& patch) {
  TESSERA_CHECK(
      pixels.sizes() == reconstruction.sizes(),
      "images are {} and their reconstructions {}; encoder_stride must be the side length of a token in pixels",
      pixels.sizes(),
      reconstruction.sizes());
  const int64_t side = side_of(mask.size(1));
  // Sums over all pixels are too large for 16 bits.
  const auto type = at::promote_types(reconstruction.scalar_type(), at::kFloat);
  const at::Tensor of_pixels = mask.ne(0)
                                   .unflatten(1, {side, side})
                                   .repeat_interleave(patch.height, 1)
                                   .repeat_interleave(patch.width, 2)
                                   .unsqueeze(1)
                                   .to(type);
  // transformers adds this epsilon for batches without masked patches.
  const at::Tensor distance = (pixels.to(type) - reconstruction.to(type)).abs();
  return (distance * of_pixels).sum() / (of_pixels.sum() + 1e-5) /
         pixels.size(1);
}

} // namespace tessera::zoo
