// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/patch_embedding.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/round_up.h"
#include "tessera/zoo/layers/positions.h"

#include <torch/types.h>

namespace tessera::zoo {

namespace {

/// More indicate a damaged configuration.
constexpr int64_t kMostPatches = int64_t{1} << 20;

/// Limits of computed tables, which are allocated before loading weights could
/// reveal a wrong size.
constexpr int64_t kMostFixedFeatures = 65536;
constexpr int64_t kMostFixed = int64_t{1} << 28;

bool divides(const ImageSize& patch, const ImageSize& image) {
  return image.height % patch.height == 0 && image.width % patch.width == 0;
}

} // namespace

ImageSize image_size_of(const at::Tensor& pixels) {
  return {pixels.size(-2), pixels.size(-1)};
}

ImageSize PatchEmbeddingOptions::grid(const ImageSize& size) const {
  return {
      (size.height + (pads ? patch.height - 1 : 0)) / patch.height,
      (size.width + (pads ? patch.width - 1 : 0)) / patch.width};
}

int64_t PatchEmbeddingOptions::tokens() const {
  return grid(image).area() + (class_token ? 1 : 0);
}

at::Tensor grid_positions(const ImageSize& grid, int64_t features) {
  TESSERA_CHECK(
      features % 4 == 0,
      "grid_positions: {} features are not a multiple of 4, as sines and cosines in two directions require",
      features);
  TESSERA_CHECK(
      features <= kMostFixedFeatures && grid.area() <= kMostFixed / features,
      "grid_positions: a table for {} patches of {} features; at most {} features and 2^28 elements are allowed",
      grid.area(),
      features,
      kMostFixedFeatures);
  const auto table = [&](int64_t length) {
    return sinusoid_table(
        length, features / 2, SinusoidLayout::kSinesThenCosines);
  };
  const at::Tensor columns =
      table(grid.width).unsqueeze(0).expand({grid.height, -1, -1});
  const at::Tensor rows =
      table(grid.height).unsqueeze(1).expand({-1, grid.width, -1});
  return at::constant_pad_nd(
             at::cat({columns, rows}, -1).flatten(0, 1), {0, 0, 1, 0})
      .unsqueeze(0);
}

PatchEmbeddingImpl::PatchEmbeddingImpl(const PatchEmbeddingOptions& options)
    : options_(options) {
  const auto& [height, width] = options.image;
  TESSERA_CHECK(
      options.patch.area() >= 1 && height >= options.patch.height &&
          width >= options.patch.width &&
          (options.pads || divides(options.patch, options.image)),
      "PatchEmbedding: patches of {} x {} pixels do not divide images of {} x {}; change image_size or patch_size",
      options.patch.height,
      options.patch.width,
      height,
      width);
  const ImageSize grid = options.grid(options.image);
  TESSERA_CHECK(
      grid.area() <= kMostPatches,
      "PatchEmbedding: images of {} x {} pixels have {} patches; at most {} are allowed",
      height,
      width,
      grid.area(),
      kMostPatches);
  projection_ = register_module(
      "projection",
      torch::nn::Conv2d(
          torch::nn::Conv2dOptions(
              options.channels,
              options.features,
              {options.patch.height, options.patch.width})
              .stride({options.patch.height, options.patch.width})));
  const torch::NoGradGuard no_grad;
  projection_->weight.normal_(0, options.deviation);
  projection_->bias.zero_();
  for (const at::Tensor& parameter : projection_->parameters()) {
    parameter.set_requires_grad(options.learns_projection);
  }
  if (options.norm) {
    norm_ = register_module("norm", Norm(*options.norm));
  }
  const auto parameter = [&](const char* name, int64_t tokens) {
    return register_parameter(
        name,
        torch::empty({1, tokens, options.features})
            .normal_(0, options.deviation));
  };
  if (options.class_token) {
    class_token_ = parameter("class_token", 1);
  }
  if (options.mask_token) {
    mask_token_ = parameter("mask_token", 1);
  }
  if (options.positions == PatchPositions::kLearned) {
    positions_ = parameter("positions", options.tokens());
  } else if (options.positions == PatchPositions::kFixed) {
    positions_ = register_parameter(
        "positions",
        grid_positions(grid, options.features)
            .slice(1, options.class_token ? 0 : 1)
            .clone(),
        /*requires_grad=*/false);
  }
}

void PatchEmbeddingImpl::check(const at::Tensor& pixels, bool interpolate)
    const {
  TESSERA_CHECK(
      pixels.defined(), "pixel_values are missing; the model needs them");
  TESSERA_CHECK(
      pixels.dim() == 4 && pixels.numel() > 0,
      "pixel_values are {}; they must be [batch, channels, height, width], and not empty",
      pixels.sizes());
  TESSERA_CHECK(
      pixels.size(1) == options_.channels,
      "pixel_values have {} channels; the model takes images with {}",
      pixels.size(1),
      options_.channels);
  const ImageSize size = image_size_of(pixels);
  if (!interpolate && !options_.pads) {
    TESSERA_CHECK(
        size == options_.image,
        "images have {} x {} pixels; the model takes {} x {}: resize them, or pass interpolate_pos_encoding",
        size.height,
        size.width,
        options_.image.height,
        options_.image.width);
  }
  TESSERA_CHECK(
      options_.pads || divides(options_.patch, size),
      "images of {} x {} pixels are not divisible into patches of {} x {}; resize or crop them",
      size.height,
      size.width,
      options_.patch.height,
      options_.patch.width);
  // Without interpolation, positions are those of the model's own grid.
  TESSERA_CHECK(
      interpolate || !positions_.defined() ||
          options_.grid(size) == options_.grid(options_.image),
      "images of {} x {} pixels need different positions from those of {} x {}: resize them, or pass interpolate_pos_encoding",
      size.height,
      size.width,
      options_.image.height,
      options_.image.width);
}

at::Tensor PatchEmbeddingImpl::patches(const at::Tensor& pixels) {
  at::Tensor images = pixels.to(projection_->weight.scalar_type());
  if (options_.pads) {
    const ImageSize size = image_size_of(pixels);
    images = at::constant_pad_nd(
        images,
        {0,
         runtime::round_up(size.width, options_.patch.width) - size.width,
         0,
         runtime::round_up(size.height, options_.patch.height) - size.height});
  }
  const at::Tensor x = projection_->forward(images).flatten(2).transpose(1, 2);
  return norm_.is_empty() ? x : norm_->forward(x);
}

at::Tensor PatchEmbeddingImpl::positions(const ImageSize& image) const {
  const ImageSize trained_grid = options_.grid(options_.image);
  const ImageSize wanted = options_.grid(image);
  if (wanted == trained_grid) {
    return positions_;
  }
  const int64_t before = options_.class_token ? 1 : 0;
  const at::Tensor map =
      positions_.narrow(1, before, trained_grid.area())
          .unflatten(1, {trained_grid.height, trained_grid.width})
          .permute({0, 3, 1, 2});
  const at::Tensor resized = at::upsample_bicubic2d(
      map, {wanted.height, wanted.width}, /*align_corners=*/false);
  const at::Tensor of_patches = resized.flatten(2).transpose(1, 2);
  return before == 0
             ? of_patches
             : at::cat({positions_.narrow(1, 0, before), of_patches}, 1);
}

at::Tensor PatchEmbeddingImpl::class_tokens(int64_t rows) const {
  const at::Tensor token = positions_.defined()
                               ? class_token_ + positions_.narrow(1, 0, 1)
                               : class_token_;
  return token.expand({rows, -1, -1});
}

at::Tensor PatchEmbeddingImpl::forward(
    const at::Tensor& pixels,
    const at::Tensor& mask) {
  at::Tensor x = patches(pixels);
  if (mask.defined()) {
    TESSERA_CHECK(
        mask_token_.defined() && mask.dim() == 2 && mask.size(0) == x.size(0) &&
            mask.size(1) == x.size(1),
        "bool_masked_pos is {}; for these images it must be [{}, {}], and the model must have a mask token",
        mask.sizes(),
        x.size(0),
        x.size(1));
    const at::Tensor masked = mask.ne(0).unsqueeze(-1).to(x.scalar_type());
    x = x * (1 - masked) + mask_token_ * masked;
  }
  if (options_.class_token) {
    x = at::cat({class_token_.expand({x.size(0), -1, -1}), x}, 1);
  }
  return positions_.defined() ? x + positions(image_size_of(pixels)) : x;
}

} // namespace tessera::zoo
