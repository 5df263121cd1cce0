// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ByteSpan` is a part of a buffer.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera::runtime {

/// [begin, end) of a buffer, in bytes.
struct ByteSpan {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t bytes() const {
    return end - begin;
  }
};

/// Bytes of the longest span.
inline int64_t longest_bytes(const std::vector<ByteSpan>& spans) {
  int64_t bytes = 0;
  for (const ByteSpan& span : spans) {
    bytes = std::max(bytes, span.bytes());
  }
  return bytes;
}

} // namespace tessera::runtime
