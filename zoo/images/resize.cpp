// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/resize.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cmath>

namespace tessera::zoo {

namespace {

constexpr int kWeightBits = 22; // of fixed-point weights, as Pillow's

struct ResizeKernel {
  double reach; ///< it is 0 beyond this distance
  double (*weight)(double distance);
};

double bilinear_weight(double distance) {
  return std::max(0.0, 1 - std::abs(distance));
}

double bicubic_weight(double distance) {
  constexpr double a = -0.5;
  const double x = std::abs(distance);
  if (x < 1) {
    return ((a + 2) * x - (a + 3)) * x * x + 1;
  }
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

ResizeKernel kernel_of(Interpolation interpolation) {
  return interpolation == Interpolation::kBilinear
             ? ResizeKernel{1, bilinear_weight}
             : ResizeKernel{2, bicubic_weight};
}

/// The inputs of one output and their weights.
struct ResizeTaps {
  int64_t first = 0;
  std::vector<int> weights;
};

/// The part of a side of a scaled image that is computed.
struct ResizeRange {
  int64_t first = 0;
  int64_t count = 0;
};

/// @param from,to pixels of a side before and after.
std::vector<ResizeTaps> taps_of(
    int64_t from,
    int64_t to,
    const ResizeRange& range,
    const ResizeKernel& kernel) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double width = std::max(scale, 1.0); // of the kernel, in inputs
  const double reach = kernel.reach * width;
  std::vector<ResizeTaps> all(static_cast<size_t>(range.count));
  std::vector<double> weights;
  for (int64_t i = 0; i < range.count; ++i) {
    const double center = (static_cast<double>(range.first + i) + 0.5) * scale;
    const auto first =
        std::max<int64_t>(0, static_cast<int64_t>(center - reach + 0.5));
    const auto last =
        std::min<int64_t>(from, static_cast<int64_t>(center + reach + 0.5));
    weights.clear();
    double sum = 0;
    for (int64_t x = first; x < last; ++x) {
      weights.push_back(
          kernel.weight((static_cast<double>(x) - center + 0.5) / width));
      sum += weights.back();
    }
    ResizeTaps& taps = all[static_cast<size_t>(i)];
    taps.first = first;
    for (const double weight : weights) {
      const double fixed = weight / sum * (1 << kWeightBits);
      taps.weights.push_back(
          static_cast<int>(fixed + (fixed < 0 ? -0.5 : 0.5)));
    }
  }
  return all;
}

uint8_t byte_of(int64_t fixed) {
  return static_cast<uint8_t>(
      std::clamp<int64_t>(fixed >> kWeightBits, 0, 255));
}

/// Sums up weighted pixels that are `step` bytes from one another.
void apply_taps(
    const ResizeTaps& taps,
    const uint8_t* pixel,
    int64_t step,
    uint8_t* result) {
  constexpr int kHalf = 1 << (kWeightBits - 1);
  int red = kHalf;
  int green = kHalf;
  int blue = kHalf;
  for (const int weight : taps.weights) {
    red += pixel[0] * weight;
    green += pixel[1] * weight;
    blue += pixel[2] * weight;
    pixel += step;
  }
  result[0] = byte_of(red);
  result[1] = byte_of(green);
  result[2] = byte_of(blue);
}

/// @param columns, rows of the result: what they are made of, in the box.
Image scaled_by(
    const Image& image,
    const ImageBox& box,
    const std::vector<ResizeTaps>& columns,
    const std::vector<ResizeTaps>& rows) {
  const auto width = static_cast<int64_t>(columns.size());
  const auto height = static_cast<int64_t>(rows.size());
  Image wide({box.size.height, width});
  for (int64_t y = 0; y < box.size.height; ++y) {
    const uint8_t* from = image.row(box.top + y) + box.left * 3;
    uint8_t* to = wide.row(y);
    for (const ResizeTaps& taps : columns) {
      apply_taps(taps, from + taps.first * 3, 3, to);
      to += 3;
    }
  }
  Image result({height, width});
  for (int64_t y = 0; y < height; ++y) {
    const ResizeTaps& taps = rows[static_cast<size_t>(y)];
    for (int64_t x = 0; x < width; ++x) {
      apply_taps(
          taps, wide.row(taps.first) + x * 3, width * 3, result.row(y) + x * 3);
    }
  }
  return result;
}

} // namespace

Image resized(
    const Image& image,
    const ImageBox& box,
    const ImageSize& size,
    Interpolation interpolation) {
  TESSERA_CHECK(
      box.top >= 0 && box.left >= 0 && box.size.height > 0 &&
          box.size.width > 0 &&
          box.top + box.size.height <= image.size.height &&
          box.left + box.size.width <= image.size.width && size.height > 0 &&
          size.width > 0,
      "resized: {} x {} pixels from ({}, {}) of an image of {} x {}, to {} x {}",
      box.size.width,
      box.size.height,
      box.left,
      box.top,
      image.size.width,
      image.size.height,
      size.width,
      size.height);
  const ResizeKernel kernel = kernel_of(interpolation);
  return scaled_by(
      image,
      box,
      taps_of(box.size.width, size.width, {0, size.width}, kernel),
      taps_of(box.size.height, size.height, {0, size.height}, kernel));
}

Image center_cropped(
    const Image& image,
    const ImageSize& size,
    double share,
    Interpolation interpolation) {
  TESSERA_CHECK(
      image.size.area() > 0 && size.area() > 0 && share > 0 && share <= 1,
      "center_cropped: the fraction {} of an image of {} x {}, to {} x {}",
      share,
      image.size.width,
      image.size.height,
      size.width,
      size.height);
  // The scaled image, of which only the middle is computed.
  const auto shorter = [&](int64_t side) {
    return std::llround(static_cast<double>(side) / share);
  };
  ImageSize scaled;
  if (image.size.height * size.width <= image.size.width * size.height) {
    scaled.height = shorter(size.height);
    scaled.width = std::max(
        size.width, scaled.height * image.size.width / image.size.height);
  } else {
    scaled.width = shorter(size.width);
    scaled.height = std::max(
        size.height, scaled.width * image.size.height / image.size.width);
  }
  const ResizeKernel kernel = kernel_of(interpolation);
  return scaled_by(
      image,
      {0, 0, image.size},
      taps_of(
          image.size.width,
          scaled.width,
          {(scaled.width - size.width) / 2, size.width},
          kernel),
      taps_of(
          image.size.height,
          scaled.height,
          {(scaled.height - size.height) / 2, size.height},
          kernel));
}

} // namespace tessera::zoo
