// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ByteReader` reads little-endian numbers and texts from bytes, never behind
// their end.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/runtime/core/error.h"

namespace tessera::runtime {

/// All functions throw Error naming the source where the bytes end too early.
class ByteReader {
 public:
  /// @param source names the bytes in errors; must outlive the reader.
  ByteReader(std::span<const std::byte> bytes, std::string_view source)
      : bytes_(bytes), source_(source) {}

  size_t left() const {
    return bytes_.size();
  }
  std::span<const std::byte> take(uint64_t count) {
    TESSERA_CHECK(
        count <= bytes_.size(),
        "{} ends too early: {} more bytes are needed, but {} are left; the file is damaged or was not written completely: fetch it again",
        source_,
        count,
        bytes_.size());
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  void skip(uint64_t count) {
    take(count);
  }
  /// A reader of the next bytes, which this one skips.
  ByteReader part(uint64_t count) {
    return {take(count), source_};
  }
  uint8_t u8() {
    return static_cast<uint8_t>(number(1));
  }
  uint16_t u16() {
    return static_cast<uint16_t>(number(2));
  }
  uint32_t u32() {
    return static_cast<uint32_t>(number(4));
  }
  uint64_t u64() {
    return number(8);
  }
  /// Big endian, as pickles have it.
  double big_endian_double() {
    uint64_t bits = 0;
    for (const std::byte byte : take(8)) {
      bits = bits << 8 | std::to_integer<uint64_t>(byte);
    }
    return std::bit_cast<double>(bits);
  }
  std::string text(uint64_t count) {
    const auto taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }
  /// Up to the next line feed, which is skipped.
  std::string line() {
    std::string text;
    for (char next = 0; (next = static_cast<char>(u8())) != '\n';) {
      text += next;
    }
    return text;
  }

 private:
  uint64_t number(size_t count) {
    const auto taken = take(count);
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) {
      value = value << 8 | std::to_integer<uint64_t>(taken[i]);
    }
    return value;
  }

  std::span<const std::byte> bytes_;
  std::string_view source_;
};

} // namespace tessera::runtime
