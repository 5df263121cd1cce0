// SPDX-License-Identifier: Apache-2.0
#pragma once
// decode_png() decodes PNG images by libpng.

#include "tessera/zoo/images/image.h"

#include <span>

namespace tessera::zoo {

/// Reads the header, and finds the last chunk.
/// @throws tessera::Error saying what is wrong, without a file name.
ImageSize check_png(std::span<const uint8_t> file);

/// Images of all types, interlaced ones too. Opacity is ignored, as by Pillow's
/// convert("RGB"); of 16 bits the upper 8 are taken.
/// @throws tessera::Error as check_png(); also on data that is cut off or
///     fails its checksums.
Image decode_png(std::span<const uint8_t> file);

} // namespace tessera::zoo
