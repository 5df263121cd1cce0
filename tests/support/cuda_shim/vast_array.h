// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VastArray` is an array with more elements than 32 bits can count, of which
// few are used.

#include "support/cuda_shim/guarded_memory.h"

#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>

namespace tessera::tests::cuda_shim {

/// Address space for an array; memory is taken for what is written.
template <typename T>
class VastArray {
 public:
  explicit VastArray(int64_t numel)
      : memory_(static_cast<size_t>(numel) * sizeof(T)),
        data_(reinterpret_cast<T*>(memory_.data())) {}

  T* data() {
    return data_;
  }
  /// Elements from `first` on, as a tensor over this memory.
  at::Tensor elements(int64_t first, int64_t numel, at::ScalarType dtype) {
    return at::from_blob(data_ + first, {numel}, dtype);
  }

 private:
  GuardedMemory memory_;
  T* data_;
};

} // namespace tessera::tests::cuda_shim
