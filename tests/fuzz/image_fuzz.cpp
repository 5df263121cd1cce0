// SPDX-License-Identifier: Apache-2.0
// A JPEG or PNG file with anything in it.

#include "fuzz/fuzz_target.h"
#include "tessera/zoo/images/image_file.h"
#include "tessera/zoo/images/resize.h"

#include <algorithm>
#include <cstdint>

namespace tessera::fuzz_image {

namespace {

constexpr size_t kPngSignature = 8; // bytes
constexpr size_t kChunkFrame = 12; // bytes: length, name and checksum

uint32_t crc32_of(std::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0xEDB88320U : 0U);
    }
  }
  return ~crc;
}

/// A PNG file whose chunks have the checksums of their content. Without it,
/// a change would end at the first checksum.
std::string with_checksums(std::string_view input) {
  std::string file(input);
  const auto byte_at = [&](size_t at) {
    return static_cast<uint32_t>(static_cast<unsigned char>(file[at]));
  };
  for (size_t at = kPngSignature; at + kChunkFrame <= file.size();) {
    const size_t length = byte_at(at) << 24U | byte_at(at + 1) << 16U |
                          byte_at(at + 2) << 8U | byte_at(at + 3);
    if (length > file.size() - at - kChunkFrame) {
      break;
    }
    const uint32_t crc =
        crc32_of(std::string_view(file).substr(at + 4, length + 4));
    for (size_t i = 0; i < 4; ++i) {
      file[at + 8 + length + i] = static_cast<char>(crc >> (24 - 8 * i));
    }
    at += kChunkFrame + length;
  }
  return file;
}

void use_image(std::string_view input) {
  const MemoryFile content(input);
  try {
    zoo::check_image(content.path());
  } catch (const Error&) {
  }
  try {
    const zoo::Image image = zoo::read_image(content.path());
    TESSERA_CHECK(
        image.pixels.size() == static_cast<size_t>(image.size.area()) * 3,
        "an image has other pixels than its size");
    const zoo::ImageSize small{8, 6};
    zoo::resized(
        image, {0, 0, image.size}, small, zoo::Interpolation::kBicubic);
    zoo::center_cropped(image, small, 0.875, zoo::Interpolation::kBicubic);
  } catch (const Error&) {
  }
}

} // namespace

TESSERA_FUZZ_TARGET(image) {
  use_image(input);
  if (input.starts_with("\x89PNG")) {
    use_image(with_checksums(input));
  }
}

} // namespace tessera::fuzz_image
