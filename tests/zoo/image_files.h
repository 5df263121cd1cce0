// SPDX-License-Identifier: Apache-2.0
#pragma once
// Image files for tests.

#include "tessera/runtime/core/error.h"
#include "tessera/zoo/images/image.h"

#include <png.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::zoo {

inline void write_png(const std::filesystem::path& path, const Image& image) {
  std::filesystem::create_directories(path.parent_path());
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.size.width);
  png.height = static_cast<png_uint_32>(image.size.height);
  png.format = PNG_FORMAT_RGB;
  TESSERA_CHECK(
      png_image_write_to_file(
          &png, path.c_str(), 0, image.pixels.data(), 0, nullptr) != 0,
      "cannot write '{}'",
      path.string());
}

/// Noise that is brighter in one of the three colors.
inline Image tinted_image(const ImageSize& size, size_t color, uint32_t seed) {
  Image image(size);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    image.pixels[i] =
        static_cast<uint8_t>((seed >> 24U) / 2 + (i % 3 == color ? 60 : 0));
  }
  return image;
}

/// folder/red/0.png ..., folder/blue/0.png ..., of different sizes.
inline void write_tinted_images(
    const std::filesystem::path& folder,
    int64_t each,
    uint32_t seed) {
  for (const auto& [name, color] :
       {std::pair("red", size_t{0}), std::pair("blue", size_t{2})}) {
    for (int64_t i = 0; i < each; ++i) {
      write_png(
          folder / name / (std::to_string(i) + ".png"),
          tinted_image(
              {20 + i % 7, 30 - i % 11},
              color,
              seed + static_cast<uint32_t>(i * 2) + (color == 0 ? 1 : 0)));
    }
  }
}

} // namespace tessera::zoo
