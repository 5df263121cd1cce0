// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/image_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/mapped_file.h"
#include "tessera/zoo/images/jpeg.h"
#include "tessera/zoo/images/png.h"

#include <algorithm>
#include <array>
#include <span>

namespace tessera::zoo {

namespace {

/// One row per format.
struct ImageFormat {
  std::array<uint8_t, 3> first_bytes;
  ImageSize (*check)(std::span<const uint8_t> file);
  Image (*decode)(std::span<const uint8_t> file);
};
constexpr std::array kImageFormats{
    ImageFormat{{0xFF, 0xD8, 0xFF}, check_jpeg, decode_jpeg},
    ImageFormat{{0x89, 'P', 'N'}, check_png, decode_png}};

const ImageFormat& format_of(std::span<const uint8_t> file) {
  TESSERA_CHECK(!file.empty(), "the file is empty");
  const auto* found = std::find_if(
      kImageFormats.begin(), kImageFormats.end(), [&](const ImageFormat& one) {
        return file.size() > one.first_bytes.size() &&
               std::equal(
                   one.first_bytes.begin(),
                   one.first_bytes.end(),
                   file.begin());
      });
  TESSERA_CHECK(
      found != kImageFormats.end(),
      "it is neither a JPEG nor a PNG image; convert it, e.g. by ImageMagick's `convert`");
  return *found;
}

/// Adds the file's name to errors.
template <typename Work>
auto with_image(const std::filesystem::path& file, const Work& work) {
  // Mapped, because a check reads only a few pages.
  const runtime::MappedFile mapped(file, "image");
  const std::span<const uint8_t> bytes(
      reinterpret_cast<const uint8_t*>(mapped.bytes().data()),
      mapped.bytes().size());
  try {
    return work(bytes, format_of(bytes));
  } catch (const Error& error) {
    TESSERA_FAIL("'{}': {}", file.string(), error.what());
  }
}

} // namespace

ImageSize check_image(const std::filesystem::path& file) {
  return with_image(
      file, [](std::span<const uint8_t> bytes, const ImageFormat& format) {
        return format.check(bytes);
      });
}

Image read_image(const std::filesystem::path& file) {
  return with_image(
      file, [](std::span<const uint8_t> bytes, const ImageFormat& format) {
        return format.decode(bytes);
      });
}

} // namespace tessera::zoo
