// SPDX-License-Identifier: Apache-2.0
#pragma once
// resized() scales a part of an image to a size.

#include "tessera/zoo/images/image.h"

namespace tessera::zoo {

enum class Interpolation { kBilinear, kBicubic };

/// A rectangle of pixels.
struct ImageBox {
  int64_t top = 0;
  int64_t left = 0;
  ImageSize size;

  bool operator==(const ImageBox&) const = default;
};

/// The pixels of a box, scaled with antialiasing as by Pillow's
/// crop().resize(), to the same bytes.
/// @throws tessera::Error on a box that is empty or not inside of the image.
Image resized(
    const Image& image,
    const ImageBox& box,
    const ImageSize& size,
    Interpolation interpolation);

/// The middle of an image that is scaled so that `size` is the fraction `share`
/// of its shorter side: to the same bytes as Pillow's resize() of the image and
/// then crop(), with sizes and places as transformers' processors round them.
/// @param share above 0, at most 1.
Image center_cropped(
    const Image& image,
    const ImageSize& size,
    double share,
    Interpolation interpolation);

} // namespace tessera::zoo
