// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Image` is decoded pixels in memory.

#include "tessera/zoo/layers/patch_embedding.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::zoo {

/// Images with more pixels are refused.
inline constexpr int64_t kMostDecodedPixels = int64_t{1} << 27;

struct Image {
  Image() = default;
  explicit Image(const ImageSize& of)
      : size(of), pixels(static_cast<size_t>(of.area() * 3)) {}

  /// The first pixel of a row.
  uint8_t* row(int64_t y) {
    return pixels.data() + y * size.width * 3;
  }
  const uint8_t* row(int64_t y) const {
    return pixels.data() + y * size.width * 3;
  }

  ImageSize size;
  std::vector<uint8_t> pixels; ///< [height, width, 3]: red, green, blue
};

} // namespace tessera::zoo
