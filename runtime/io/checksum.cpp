// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/checksum.h"

#include <xxhash.h>

#include <array>
#include <cstdio>

namespace tessera::runtime {

std::string checksum_of(std::span<const std::byte> data) {
  const XXH64_hash_t hash = XXH3_64bits(data.data(), data.size());
  std::array<char, 32> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "xxh3:%016llx",
      static_cast<unsigned long long>(hash));
  return text.data();
}

} // namespace tessera::runtime
