// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/jpeg.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>

// They need <cstdio> before.
#include <jpeglib.h>

#include <jerror.h>

namespace tessera::zoo {

namespace {

/// Huffman codes have a bit at least, and blocks of 64 pixels a code.
constexpr int64_t kMostPixelsPerByte = 8 * 64;
/// Of progressive images; common are ten. Each goes over the whole image, and a
/// file of empty ones would take minutes.
constexpr int kMostScans = 500;
/// The end of a JPEG file in which its last marker is looked for.
constexpr size_t kJpegTail = 1 << 16;

struct JpegErrors {
  jpeg_error_mgr manager; ///< first: libjpeg knows only this
  std::jmp_buf back;
  std::array<char, JMSG_LENGTH_MAX> text;
};

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->text.data());
  std::longjmp(errors->back, 1);
}

/// Warnings of missing data are errors; others, such as bytes between markers,
/// are tolerated as other programs do.
void on_jpeg_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER)) {
    on_jpeg_error(info);
  }
}

void on_jpeg_text(j_common_ptr /*info*/) {}

void on_jpeg_progress(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number >
      kMostScans) {
    auto* errors = reinterpret_cast<JpegErrors*>(info->err);
    std::snprintf(
        errors->text.data(),
        errors->text.size(),
        "it has more than %d scans",
        kMostScans);
    std::longjmp(errors->back, 1);
  }
}

/// Errors return by longjmp(): no function that libjpeg returns into has
/// objects with destructors.
class JpegReader {
 public:
  explicit JpegReader(std::span<const uint8_t> file) : file_(file) {
    info_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = on_jpeg_error;
    errors_.manager.emit_message = on_jpeg_message;
    errors_.manager.output_message = on_jpeg_text;
    progress_.progress_monitor = on_jpeg_progress;
  }
  ~JpegReader() {
    jpeg_destroy_decompress(&info_); // nothing if it was not created
  }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  void open() {
    check(read_header());
    const int components = info_.num_components;
    TESSERA_CHECK(
        components == 1 || components == 3 || components == 4,
        "the JPEG image has {} components; gray, color and CMYK images have 1, 3 and 4",
        components);
    TESSERA_CHECK(
        size().area() > 0 && size().area() <= kMostDecodedPixels,
        "the JPEG image has {} x {} pixels; at most {} pixels are decoded",
        size().width,
        size().height,
        kMostDecodedPixels);
    // Before memory is allocated for them.
    TESSERA_CHECK(
        info_.arith_code != 0 ||
            size().area() / kMostPixelsPerByte <= std::ssize(file_),
        "the JPEG image has {} x {} pixels, for which its {} bytes are too few: the file is cut off",
        size().width,
        size().height,
        file_.size());
  }
  ImageSize size() const {
    return {info_.image_height, info_.image_width};
  }
  bool is_cmyk() const {
    return info_.num_components == 4;
  }
  /// @param pixels of each row: 3 bytes, or 4 of CMYK.
  void read(std::vector<uint8_t>& pixels) {
    check(read_rows(pixels.data()));
  }

 private:
  bool read_header() {
    if (setjmp(errors_.back) != 0) {
      return false;
    }
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    jpeg_mem_src(&info_, file_.data(), file_.size());
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  bool read_rows(uint8_t* pixels) {
    if (setjmp(errors_.back) != 0) {
      return false;
    }
    info_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&info_);
    const size_t stride = static_cast<size_t>(info_.output_width) *
                          static_cast<size_t>(info_.output_components);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels + info_.output_scanline * stride;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  void check(bool done) {
    if (!done) {
      TESSERA_FAIL("the JPEG image is broken: {}", errors_.text.data());
    }
  }

  std::span<const uint8_t> file_;
  jpeg_decompress_struct info_{};
  JpegErrors errors_{};
  jpeg_progress_mgr progress_{};
};

/// a * b / 255, rounded.
uint8_t scaled_byte(int a, int b) {
  const int product = a * b + 128;
  return static_cast<uint8_t>((product + (product >> 8)) >> 8);
}

} // namespace

ImageSize check_jpeg(std::span<const uint8_t> file) {
  JpegReader reader(file);
  reader.open();
  constexpr std::array<uint8_t, 2> kEnd{0xFF, 0xD9};
  const auto tail = file.last(std::min(file.size(), kJpegTail));
  TESSERA_CHECK(
      std::search(tail.begin(), tail.end(), kEnd.begin(), kEnd.end()) !=
          tail.end(),
      "the JPEG image has no end marker: the file is cut off");
  return reader.size();
}

Image decode_jpeg(std::span<const uint8_t> file) {
  JpegReader reader(file);
  reader.open();
  Image image(reader.size());
  if (!reader.is_cmyk()) {
    reader.read(image.pixels);
    return image;
  }
  // Adobe's programs, which write such files, store the complements.
  std::vector<uint8_t> cmyk(static_cast<size_t>(image.size.area()) * 4);
  reader.read(cmyk);
  for (size_t i = 0; i < cmyk.size() / 4; ++i) {
    const int light = cmyk[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      image.pixels[3 * i + c] = static_cast<uint8_t>(
          light - scaled_byte(255 - cmyk[4 * i + c], light));
    }
  }
  return image;
}

} // namespace tessera::zoo
