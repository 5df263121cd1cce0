// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ProtoMessage` writes the fields of a protocol buffer; LibTorch's own headers
// of the library clash with those of others.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::engine {

template <typename T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xFF);
  }
}

/// A message in the wire format of protocol buffers
/// (https://protobuf.dev/programming-guides/encoding).
class ProtoMessage {
 public:
  void add_varint(int field, uint64_t value) {
    append_varint(static_cast<uint64_t>(field) << 3);
    append_varint(value);
  }
  void add_double(int field, double value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  }
  void add_float(int field, float value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  }
  void add_bytes(int field, std::string_view value) {
    append_varint(static_cast<uint64_t>(field) << 3 | 2);
    append_varint(value.size());
    bytes_ += value;
  }
  void add_message(int field, const ProtoMessage& message) {
    add_bytes(field, message.bytes());
  }
  const std::string& bytes() const {
    return bytes_;
  }

 private:
  void append_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

} // namespace tessera::engine
