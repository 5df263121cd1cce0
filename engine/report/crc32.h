// SPDX-License-Identifier: Apache-2.0
#pragma once
// `crc32()` is the checksum of records of some file formats.

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::engine {

/// Polynomials, reversed.
inline constexpr uint32_t kCrc32 = 0xEDB88320; ///< IEEE 802.3, as in zlib
inline constexpr uint32_t kCrc32C = 0x82F63B78; ///< Castagnoli

/// The cyclic redundancy check of `data` by a polynomial.
template <uint32_t polynomial>
uint32_t crc32(std::string_view data) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = byte;
      for (int bit = 0; bit < 8; ++bit) {
        crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
      }
      table[byte] = crc;
    }
    return table;
  }();
  uint32_t crc = ~uint32_t{0};
  for (const char c : data) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  }
  return ~crc;
}

} // namespace tessera::engine
