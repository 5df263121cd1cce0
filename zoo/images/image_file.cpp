// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/image_file.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/posix_error.h"
#include "tessera/zoo/images/jpeg.h"
#include "tessera/zoo/images/png.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>

namespace tessera::zoo {

namespace {

/// A mapped file, of which a check reads only a few pages.
class MappedImage {
 public:
  explicit MappedImage(const std::filesystem::path& file) {
    // Without O_NONBLOCK, opening a pipe would wait for its other end.
    const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status {};
    int code = 0;
    if (fd < 0 || ::fstat(fd, &status) != 0) {
      code = errno;
    } else if (!S_ISREG(status.st_mode)) {
      code = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    } else if (status.st_size > 0) {
      const auto size = static_cast<size_t>(status.st_size);
      void* at = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
      if (at == MAP_FAILED) {
        code = errno;
      } else {
        bytes_ = {static_cast<const uint8_t*>(at), size};
      }
    }
    if (fd >= 0) {
      ::close(fd); // the mapping keeps the file open
    }
    TESSERA_CHECK(
        code == 0,
        "{}; {}",
        runtime::detail::errno_text(code),
        runtime::detail::errno_remedy(code));
  }
  ~MappedImage() {
    if (!bytes_.empty()) {
      ::munmap(const_cast<uint8_t*>(bytes_.data()), bytes_.size());
    }
  }
  MappedImage(const MappedImage&) = delete;
  MappedImage& operator=(const MappedImage&) = delete;

  std::span<const uint8_t> bytes() const {
    return bytes_;
  }

 private:
  std::span<const uint8_t> bytes_;
};

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
  try {
    const MappedImage mapped(file);
    return work(mapped.bytes(), format_of(mapped.bytes()));
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
