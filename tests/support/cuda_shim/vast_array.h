// SPDX-License-Identifier: Apache-2.0
#pragma once
// `VastArray` is an array with more elements than 32 bits can count, of which
// few are used.

#include "tessera/runtime/core/error.h"

#include <ATen/ops/from_blob.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace tessera::tests::cuda_shim {

/// Address space for an array; memory is taken for what is written.
template <typename T>
class VastArray {
 public:
  explicit VastArray(int64_t numel)
      : bytes_(static_cast<size_t>(numel) * sizeof(T)),
        data_(static_cast<T*>(::mmap(
            nullptr,
            bytes_,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1,
            0))) {
    TESSERA_CHECK(data_ != MAP_FAILED, "no address space");
    // Whole huge pages would take the memory that this is to save.
    ::madvise(data_, bytes_, MADV_NOHUGEPAGE);
  }
  ~VastArray() {
    ::munmap(data_, bytes_);
  }
  VastArray(const VastArray&) = delete;
  VastArray& operator=(const VastArray&) = delete;

  T* data() {
    return data_;
  }
  /// Elements from `first` on, as a tensor over this memory.
  at::Tensor elements(int64_t first, int64_t numel, at::ScalarType dtype) {
    return at::from_blob(data_ + first, {numel}, dtype);
  }

 private:
  size_t bytes_;
  T* data_;
};

} // namespace tessera::tests::cuda_shim
