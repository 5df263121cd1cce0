// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/inputs/example_options.h"

#include "tessera/runtime/core/option_fields.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

/// [channels, 1, 1], or one number for all, on the device of `pixels`.
at::Tensor per_channel(
    const std::vector<double>& numbers,
    const at::Tensor& pixels) {
  return torch::tensor(numbers, torch::kFloat)
      .view({-1, 1, 1})
      .to(pixels.device());
}

} // namespace

at::Tensor prepared_pixels(
    const at::Tensor& pixels,
    const PixelOptions& pixel_options) {
  const bool is_bytes = !pixels.is_floating_point();
  const double scale = pixel_options.scale.value_or(is_bytes ? 1.0 / 255 : 1.0);
  const bool changes =
      scale != 1 || !pixel_options.mean.empty() || !pixel_options.std.empty();
  // In place, as images are the most that a batch takes.
  at::Tensor result =
      pixels.to(torch::kFloat, /*non_blocking=*/false, /*copy=*/changes);
  if (scale != 1) {
    result.mul_(scale);
  }
  if (!pixel_options.mean.empty()) {
    result.sub_(per_channel(pixel_options.mean, pixels));
  }
  if (!pixel_options.std.empty()) {
    result.div_(per_channel(pixel_options.std, pixels));
  }
  return result;
}

void visit_fields(runtime::OptionFields& fields, PixelOptions& options) {
  fields.field(
      "scale",
      options.scale,
      {},
      "the model gets (pixel * scale - mean) / std, as in preprocessor_config.json; by default 1/255 for bytes, else 1");
  fields.field(
      "mean",
      options.mean,
      {},
      "per channel, or one for all; by default 0. ViT uses `[0.5, 0.5, 0.5]`");
  fields.field(
      "std",
      options.std,
      {.min = 0, .open_min = true},
      "per channel, or one for all; by default 1. ViT uses `[0.5, 0.5, 0.5]`");
}

} // namespace tessera::zoo
