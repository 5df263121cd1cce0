// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/core/size_text.h"

#include "tessera/runtime/core/format.h"

#include <cstdio>

namespace tessera::runtime {

std::string size_text(int64_t bytes) {
  if (bytes == 0) {
    return "0 B"; // in a table of whatever unit
  }
  constexpr double kKiB = 1024;
  constexpr double kMiB = kKiB * kKiB;
  const auto size = static_cast<double>(bytes);
  const bool is_small = size < kMiB / 10 && size > -kMiB / 10;
  char text[64];
  std::snprintf(
      text,
      sizeof(text),
      "%.2f %s",
      size / (is_small ? kKiB : kMiB),
      is_small ? "KiB" : "MiB");
  return text;
}

std::string count_text(int64_t count, std::string_view noun) {
  return formatted("{} {}{}", count, noun, count == 1 ? "" : "s");
}

} // namespace tessera::runtime
