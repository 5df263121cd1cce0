// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/png.h"

#include "tessera/runtime/core/error.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace tessera::zoo {

namespace {

constexpr size_t kPngSignature = 8; // bytes
/// Deflate's codes have two bits at least, and stand for 258 bytes at most.
constexpr size_t kMostDeflation = 8 / 2 * 258;

/// Errors return by longjmp(): no function that libpng returns into has
/// objects with destructors.
class PngReader {
 public:
  explicit PngReader(std::span<const uint8_t> file)
      : file_bytes_(file.size()),
        rest_(file),
        png_(png_create_read_struct(
            PNG_LIBPNG_VER_STRING,
            this,
            on_error,
            on_warning)),
        info_(png_ == nullptr ? nullptr : png_create_info_struct(png_)) {}
  ~PngReader() {
    if (png_ != nullptr) {
      png_destroy_read_struct(&png_, &info_, nullptr);
    }
  }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  void open() {
    TESSERA_CHECK(info_ != nullptr, "libpng {} cannot start", PNG_LIBPNG_VER);
    check(read_header());
    TESSERA_CHECK(
        size().area() > 0 && size().area() <= kMostDecodedPixels,
        "the PNG image has {} x {} pixels; at most {} pixels are decoded",
        size().width,
        size().height,
        kMostDecodedPixels);
    // Before memory is allocated for them.
    TESSERA_CHECK(
        png_get_rowbytes(png_, info_) * static_cast<size_t>(size().height) /
                kMostDeflation <=
            file_bytes_,
        "the PNG image has {} x {} pixels, for which its {} bytes are too few: the file is cut off",
        size().width,
        size().height,
        file_bytes_);
  }
  ImageSize size() const {
    return {
        static_cast<int64_t>(png_get_image_height(png_, info_)),
        static_cast<int64_t>(png_get_image_width(png_, info_))};
  }
  void read(Image& image) {
    check(set_conversions());
    TESSERA_CHECK(
        png_get_rowbytes(png_, info_) ==
            static_cast<size_t>(image.size.width) * 3,
        "the PNG image is of a type that is not known");
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < image.size.height; ++y) {
      rows.push_back(image.row(y));
    }
    check(read_rows(rows.data()));
  }

 private:
  static void on_error(png_structp png, const char* text) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(reader->text_.data(), text, reader->text_.size() - 1);
    png_longjmp(png, 1);
  }
  static void on_warning(png_structp /*png*/, const char* /*text*/) {}
  static void on_read(png_structp png, png_bytep bytes, size_t count) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader->rest_.size()) {
      png_error(png, "the file is cut off");
    }
    std::copy_n(reader->rest_.data(), count, bytes);
    reader->rest_ = reader->rest_.subspan(count);
  }

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return false;
    }
    png_set_read_fn(png_, this, on_read);
    png_read_info(png_, info_);
    return true;
  }

  bool set_conversions() {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return false;
    }
    png_set_strip_16(png_);
    png_set_expand(png_); // palettes, and gray of less than 8 bits
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) {
      return false;
    }
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  void check(bool done) const {
    TESSERA_CHECK(done, "the PNG image is broken: {}", text_.data());
  }

  size_t file_bytes_;
  std::span<const uint8_t> rest_;
  std::array<char, 200> text_{};
  png_structp png_;
  png_infop info_;
};

size_t big_endian(std::span<const uint8_t> bytes) {
  return size_t{bytes[0]} << 24U | size_t{bytes[1]} << 16U |
         size_t{bytes[2]} << 8U | size_t{bytes[3]};
}

/// Whether the chunks reach the last one: length, name, data and checksum each.
bool reaches_end(std::span<const uint8_t> file) {
  size_t at = kPngSignature;
  while (at + 12 <= file.size()) {
    if (std::memcmp(file.data() + at + 4, "IEND", 4) == 0) {
      return true;
    }
    at += 12 + big_endian(file.subspan(at, 4));
  }
  return false;
}

} // namespace

ImageSize check_png(std::span<const uint8_t> file) {
  PngReader reader(file);
  reader.open();
  TESSERA_CHECK(
      reaches_end(file), "the PNG image has no end: the file is cut off");
  return reader.size();
}

Image decode_png(std::span<const uint8_t> file) {
  PngReader reader(file);
  reader.open();
  Image image(reader.size());
  reader.read(image);
  return image;
}

} // namespace tessera::zoo
