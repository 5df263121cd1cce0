// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/cpu_memory_counter.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <malloc.h>

#include <atomic>
#include <mutex>

namespace tessera {

namespace {

std::atomic<int64_t> live_bytes{0};
std::atomic<int64_t> peak_bytes{0};

void add_bytes(int64_t count) {
  const int64_t now = live_bytes += count;
  int64_t peak = peak_bytes;
  while (now > peak && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
}

// The heap knows the size of a block, so nothing needs to be stored with it:
// callers of raw_allocate() want a context that equals the data.
int64_t heap_bytes(void* data) {
  return static_cast<int64_t>(malloc_usable_size(data));
}

void free_counted(void* data) {
  if (data != nullptr) {
    live_bytes -= heap_bytes(data);
    c10::free_cpu(data);
  }
}

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = c10::alloc_cpu(bytes);
    if (data != nullptr) {
      add_bytes(heap_bytes(data));
    }
    return {data, data, &free_counted, c10::kCPU};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_counted;
  }

  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

} // namespace

void install_cpu_memory_counter() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Lives as long as the process: LibTorch keeps the pointer.
    static auto* counter = new CountingAllocator();
    c10::SetCPUAllocator(counter, /*priority=*/1);
  });
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

} // namespace tessera
