// SPDX-License-Identifier: Apache-2.0
#pragma once
// decode_jpeg() decodes JPEG images by libjpeg-turbo.

#include "tessera/zoo/images/image.h"

#include <span>

namespace tessera::zoo {

/// Reads the header, and looks for the marker at the end of the image.
/// @throws tessera::Error saying what is wrong, without a file name.
ImageSize check_jpeg(std::span<const uint8_t> file);

/// Gray, YCbCr, RGB, CMYK and YCCK images, as Pillow decodes them.
/// @throws tessera::Error as check_jpeg(); also on data that is cut off.
Image decode_jpeg(std::span<const uint8_t> file);

} // namespace tessera::zoo
