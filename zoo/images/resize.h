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
    Interpolation how);

/// The box in the middle of an image whose shape is that of `size`, and whose
/// longer relative side is the fraction `share` of the image's.
ImageBox center_box(
    const ImageSize& image,
    const ImageSize& size,
    double share);

} // namespace tessera::zoo
