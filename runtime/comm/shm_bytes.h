// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tensors as bytes.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera {

/// Bytes that messages in shared memory are aligned to; a multiple of every
/// element.
inline constexpr int64_t kShmLine = 64;

inline std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.mutable_data_ptr());
}

inline void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes) {
  // An empty tensor has no address, and memcpy wants one.
  if (bytes > 0 && to != from) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
  }
}

} // namespace tessera
