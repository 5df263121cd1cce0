// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/image_views.h"

#include "tessera/zoo/images/image_changes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tessera::zoo {

namespace {

/// As torchvision's ColorJitter: in random order.
void jitter_colors(
    Image& image,
    const ViewOptions& options,
    ImageRandom& random) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (size_t i = order.size() - 1; i > 0; --i) {
    std::swap(
        order[i],
        order[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
  }
  const auto factor = [&](double range) {
    return random.between(std::max(0.0, 1 - range), 1 + range);
  };
  for (const int change : order) {
    if (change == 0 && options.brightness > 0) {
      change_brightness(image, factor(options.brightness));
    } else if (change == 1 && options.contrast > 0) {
      change_contrast(image, factor(options.contrast));
    } else if (change == 2 && options.saturation > 0) {
      change_saturation(image, factor(options.saturation));
    } else if (change == 3 && options.hue > 0) {
      change_hue(image, random.between(-options.hue, options.hue));
    }
  }
}

} // namespace

ImageBox random_crop(
    const ImageSize& image,
    const ViewOptions& options,
    ImageRandom& random) {
  constexpr int kTries = 10;
  const double least_log = std::log(options.least_ratio);
  const double most_log = std::log(options.most_ratio);
  const auto side = [](double length) { return std::llround(length); };
  for (int i = 0; i < kTries; ++i) {
    const double area = static_cast<double>(image.area()) *
                        random.between(options.least_area, options.most_area);
    const double ratio = std::exp(random.between(least_log, most_log));
    const ImageSize size{
        side(std::sqrt(area / ratio)), side(std::sqrt(area * ratio))};
    if (size.height > 0 && size.height <= image.height && size.width > 0 &&
        size.width <= image.width) {
      const int64_t top = random.below(image.height - size.height + 1);
      return {top, random.below(image.width - size.width + 1), size};
    }
  }
  ImageSize size = image;
  const double ratio =
      static_cast<double>(image.width) / static_cast<double>(image.height);
  if (ratio < options.least_ratio) {
    size.height = side(static_cast<double>(image.width) / options.least_ratio);
  } else if (ratio > options.most_ratio) {
    size.width = side(static_cast<double>(image.height) * options.most_ratio);
  }
  size = {
      std::clamp<int64_t>(size.height, 1, image.height),
      std::clamp<int64_t>(size.width, 1, image.width)};
  return {
      (image.height - size.height) / 2, (image.width - size.width) / 2, size};
}

Image random_view(
    const Image& image,
    const ImageSize& size,
    Interpolation interpolation,
    const ViewOptions& options,
    ImageRandom& random) {
  constexpr double kUsualWidth = 224;
  Image view = resized(
      image, random_crop(image.size, options, random), size, interpolation);
  if (random.happens(options.jitter)) {
    jitter_colors(view, options, random);
  }
  if (random.happens(options.gray)) {
    make_gray(view);
  }
  if (random.happens(options.blur)) {
    blur(
        view,
        random.between(0.1, 2) * static_cast<double>(size.width) / kUsualWidth);
  }
  if (random.happens(options.solarize)) {
    solarize(view);
  }
  if (random.happens(options.flip)) {
    flip_horizontally(view);
  }
  return view;
}

} // namespace tessera::zoo
