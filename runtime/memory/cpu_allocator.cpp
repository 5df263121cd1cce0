// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/core/size_text.h"
#include "tessera/runtime/memory/cpu_allocator.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/memory/host_heap.h"
#include "tessera/runtime/memory/refused_allocation.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <limits>
#include <mutex>
#include <utility>

namespace tessera::runtime {

namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};
std::atomic<int64_t> most_bytes{std::numeric_limits<int64_t>::max()};
std::atomic<bool> keeping{false};
thread_local bool counting = true;

void add_bytes(int64_t count) {
  const int64_t now = live_bytes += count;
  if (const int64_t most = most_bytes; now > most) {
    live_bytes -= count;
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        false,
        formatted(
            "the limit of {} is reached: {} are in use and {} more are asked for",
            size_text(most),
            size_text(now - count),
            size_text(count)));
  }
  int64_t peak = peak_bytes;
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

// Never destroyed: tensors may be freed at the very end of the process.
HostHeap& heap() {
  static auto* made = new HostHeap();
  return *made;
}

// Smaller blocks stay with malloc, which reuses them itself.
constexpr size_t kSmallestKept = 64 << 10;

/// The header of every allocation, as long as LibTorch's alignment.
struct alignas(64) Header {
  size_t bytes; ///< of the whole allocation, including the header
  bool is_kept; ///< from heap(), not from malloc
  bool is_counted;

  int64_t counted_bytes() const {
    return is_counted ? static_cast<int64_t>(bytes) : 0;
  }
};

void* allocate_with_header(size_t bytes) {
  Header made{bytes + sizeof(Header), false, counting};
  if (made.is_counted) {
    add_bytes(made.counted_bytes());
  }
  void* memory = keeping && made.bytes >= kSmallestKept
                     ? heap().take(made.bytes)
                     : nullptr;
  made.is_kept = memory != nullptr;
  if (!made.is_kept) {
    try {
      memory = c10::alloc_cpu(made.bytes);
    } catch (...) {
      live_bytes -= made.counted_bytes();
      throw;
    }
  }
  return new (memory) Header(made) + 1;
}

void free_with_header(void* data) {
  if (data == nullptr || free_dry_block(data)) {
    return;
  }
  Header* header = static_cast<Header*>(data) - 1;
  live_bytes -= header->counted_bytes();
  if (header->is_kept) {
    heap().give_back(header, header->bytes);
  } else {
    c10::free_cpu(header);
  }
}

class CpuAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 0 && refuses_allocation()) {
      throw RefusedAllocation{bytes};
    }
    if (const DryAllocation& dry = dry_allocation(); dry.heap) {
      return dry.heap->allocate(bytes, dry.has_values);
    }
    void* data = bytes == 0 ? nullptr : allocate_with_header(bytes);
    return {data, data, &free_with_header, c10::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_with_header;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

} // namespace

void install_cpu_memory_counter() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never destroyed: LibTorch keeps the pointer.
    static auto* allocator = new CpuAllocator();
    c10::SetCPUAllocator(allocator, /*priority=*/1);
  });
}

void keep_freed_cpu_memory(bool keep) {
  install_cpu_memory_counter();
  keeping = keep;
  if (!keep) {
    heap().release();
  }
}

int64_t cpu_bytes_live() {
  return live_bytes;
}

int64_t cpu_bytes_peak() {
  return peak_bytes;
}

void reset_cpu_bytes_peak() {
  peak_bytes = live_bytes.load();
}

void limit_cpu_bytes(std::optional<int64_t> bytes) {
  install_cpu_memory_counter();
  most_bytes = bytes.value_or(std::numeric_limits<int64_t>::max());
}

UncountedCpuMemory::UncountedCpuMemory()
    : had_(std::exchange(counting, false)) {}

UncountedCpuMemory::~UncountedCpuMemory() {
  counting = had_;
}

} // namespace tessera::runtime
