// SPDX-License-Identifier: Apache-2.0
#pragma once
// read_image() decodes JPEG and PNG files.

#include "tessera/zoo/images/image.h"

#include <filesystem>

namespace tessera::zoo {

/// Reads the header of a file and looks for its end, without decoding it. The
/// content decides whether it is JPEG or PNG, not the name.
/// @throws tessera::Error naming the file and what is wrong with it.
ImageSize check_image(const std::filesystem::path& file);

/// Decodes a file, to the same pixels as Pillow's convert("RGB"). Its rotation
/// in EXIF is ignored, as by torchvision. Thread-safe.
/// @throws tessera::Error as check_image().
Image read_image(const std::filesystem::path& file);

} // namespace tessera::zoo
