// SPDX-License-Identifier: Apache-2.0
#pragma once
// Access to the bytes of tensors, and the alignment of messages in shared
// memory.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera::runtime {

/// Alignment of messages in shared memory, in bytes; a multiple of every
/// element size.
inline constexpr int64_t kShmLine = 64;

inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

inline void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  // An empty tensor has a null pointer, which memcpy does not accept.
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

} // namespace tessera::runtime
