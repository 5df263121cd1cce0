// SPDX-License-Identifier: Apache-2.0
#pragma once
// `GuardedTensors` puts CPU tensors between pages that no program can access,
// and tells memory_checks.h of them: the buffers that kernels get.

#include "support/cuda_shim/memory_checks.h"
#include "tessera/runtime/core/error.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tessera::tests::cuda_shim {

/// Address space between two guards, of which nothing is read or written before
/// and after `bytes` bytes.
class GuardedMemory {
 public:
  /// The end is at a guard, but for LibTorch's alignment.
  explicit GuardedMemory(size_t bytes)
      : middle_bytes_((bytes + kPage - 1) / kPage * kPage),
        zone_(static_cast<std::byte*>(::mmap(
            nullptr,
            middle_bytes_ + 2 * kGuard,
            PROT_NONE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1,
            0))) {
    TESSERA_CHECK(zone_ != MAP_FAILED, "no address space for {} bytes", bytes);
    std::byte* const middle = zone_ + kGuard;
    TESSERA_CHECK(
        middle_bytes_ == 0 ||
            ::mprotect(middle, middle_bytes_, PROT_READ | PROT_WRITE) == 0,
        "mprotect of {} bytes failed",
        middle_bytes_);
    // Whole huge pages would take the memory that VastArray is to save.
    ::madvise(middle, middle_bytes_, MADV_NOHUGEPAGE);
    data_ = middle + (middle_bytes_ - bytes) / kAlignment * kAlignment;
    add_buffer(zone_, data_, data_ + bytes, zone_ + middle_bytes_ + 2 * kGuard);
  }
  ~GuardedMemory() {
    remove_buffer(zone_);
    ::munmap(zone_, middle_bytes_ + 2 * kGuard);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  std::byte* data() const {
    return data_;
  }

 private:
  static constexpr size_t kPage = 4096;
  static constexpr size_t kGuard = 16 * kPage;
  static constexpr size_t kAlignment = 64;

  size_t middle_bytes_;
  std::byte* zone_;
  std::byte* data_ = nullptr;
};

/// While it exists, new CPU tensors are in guarded memory, filled with ones
/// (NaN).
class GuardedTensors {
 public:
  GuardedTensors() : before_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(&allocator(), kPriority);
  }
  ~GuardedTensors() {
    c10::SetCPUAllocator(before_, kPriority);
  }
  GuardedTensors(const GuardedTensors&) = delete;
  GuardedTensors& operator=(const GuardedTensors&) = delete;

 private:
  static constexpr uint8_t kPriority = 1; // above LibTorch's own

  struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
      auto* memory = new GuardedMemory(bytes);
      std::memset(memory->data(), 0xff, bytes);
      return {
          memory->data(),
          memory,
          [](void* context) { delete static_cast<GuardedMemory*>(context); },
          c10::Device(c10::kCPU)};
    }
    void copy_data(void* to, const void* from, size_t bytes) const override {
      default_copy_data(to, from, bytes);
    }
  };
  static Allocator& allocator() {
    static Allocator one;
    return one;
  }

  c10::Allocator* before_;
};

} // namespace tessera::tests::cuda_shim
