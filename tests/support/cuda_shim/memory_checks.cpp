// SPDX-License-Identifier: Apache-2.0
#include "support/cuda_shim/memory_checks.h"

#include "support/cuda_shim/kernel_run.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

// The linker's names for the ends of the section; null if nothing is in it.
extern "C" {
extern std::byte __start_cuda_shim_shared[] __attribute__((weak));
extern std::byte __stop_cuda_shim_shared[] __attribute__((weak));
}

namespace tessera::tests::cuda_shim {

namespace {

/// A number for each part of a block between two barriers, in the order in
/// which they run: blocks run one after the other.
using Segment = uint32_t;

constexpr uint16_t kSeveralThreads = UINT16_MAX;

/// The accesses to a byte. Segments are 0 before the first one.
struct Cell {
  Segment written;
  Segment first_read; ///< of the launch
  Segment read; ///< the latest
  uint16_t writer; ///< thread in `written`
  uint16_t reader; ///< thread in `read`, or kSeveralThreads
};

/// Zeros, taken where they are touched.
class Cells {
 public:
  explicit Cells(size_t count) : bytes_(count * sizeof(Cell)) {
    if (bytes_ == 0) {
      return;
    }
    void* memory = ::mmap(
        nullptr,
        bytes_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        -1,
        0);
    if (memory == MAP_FAILED) {
      std::perror("cuda_shim: mmap");
      std::abort();
    }
    ::madvise(memory, bytes_, MADV_NOHUGEPAGE);
    cells_ = static_cast<Cell*>(memory);
  }
  ~Cells() {
    if (cells_ != nullptr) {
      ::munmap(cells_, bytes_);
    }
  }
  Cells(const Cells&) = delete;
  Cells& operator=(const Cells&) = delete;

  Cell& operator[](size_t i) const {
    return cells_[i];
  }

 private:
  size_t bytes_;
  Cell* cells_ = nullptr;
};

uintptr_t number_of(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

struct Buffer {
  uintptr_t zone_begin;
  uintptr_t begin;
  uintptr_t end;
  uintptr_t zone_end;
  Cells cells;
};

class Checks {
 public:
  static Checks& get() {
    static Checks checks;
    return checks;
  }

  void add(std::unique_ptr<Buffer> buffer) {
    const std::lock_guard lock(mutex_);
    const uintptr_t zone = buffer->zone_begin;
    zones_begin_ = std::min(zones_begin_, zone);
    zones_end_ = std::max(zones_end_, buffer->zone_end);
    buffers_[zone] = std::move(buffer);
  }
  void remove(uintptr_t zone) {
    const std::lock_guard lock(mutex_);
    buffers_.erase(zone);
    latest_ = {};
  }

  void begin_launch() {
    is_running_ = true;
    launch_ = ++segment_;
  }
  void begin_block() {
    block_ = ++segment_;
    if (shared_.begin != 0) {
      std::memset(
          reinterpret_cast<void*>(shared_.begin),
          0xff,
          shared_.end - shared_.begin);
    }
  }
  void pass_barrier() {
    ++segment_;
  }
  void end_launch() {
    is_running_ = false;
  }

  void access(uintptr_t address, size_t bytes, bool is_write) {
    if (!is_running_) {
      return;
    }
    if (address - shared_.begin < shared_.end - shared_.begin) {
      for (size_t i = 0; i < bytes; ++i) {
        Cell& cell = shared_.cells[address - shared_.begin + i];
        if (!is_write && cell.written < block_) {
          fail(
              "initcheck",
              "shared memory that its block has not written",
              is_write);
        }
        check(cell, is_write, block_);
      }
      return;
    }
    const Buffer* buffer = find(address);
    if (buffer == nullptr) {
      return;
    }
    if (address < buffer->begin || address + bytes > buffer->end) {
      std::fprintf(
          stderr,
          "cuda_shim: %zu bytes from byte %lld of a buffer of %llu\n",
          bytes,
          static_cast<long long>(address - buffer->begin),
          static_cast<unsigned long long>(buffer->end - buffer->begin));
      fail("memcheck", "memory out of bounds", is_write);
    }
    for (size_t i = 0; i < bytes; ++i) {
      check(buffer->cells[address - buffer->begin + i], is_write, launch_);
    }
  }

 private:
  Checks()
      : shared_{
            0,
            number_of(__start_cuda_shim_shared),
            number_of(__stop_cuda_shim_shared),
            0,
            Cells(
                number_of(__stop_cuda_shim_shared) -
                number_of(__start_cuda_shim_shared))} {}

  /// Threads take turns with few buffers.
  const Buffer* find(uintptr_t address) {
    if (address < zones_begin_ || address >= zones_end_) {
      return nullptr; // the stack, with a kernel's arguments, or the heap
    }
    for (const Buffer* buffer : latest_) {
      if (buffer != nullptr && address - buffer->zone_begin <
                                   buffer->zone_end - buffer->zone_begin) {
        return buffer;
      }
    }
    auto after = buffers_.upper_bound(address);
    if (after == buffers_.begin()) {
      return nullptr;
    }
    const Buffer* buffer = std::prev(after)->second.get();
    if (address >= buffer->zone_end) {
      return nullptr;
    }
    latest_[next_latest_++ % latest_.size()] = buffer;
    return buffer;
  }

  /// @param since what is older is ordered before everything now.
  void check(Cell& cell, bool is_write, Segment since) {
    const auto thread = static_cast<uint16_t>(kernel.thread.x);
    if (cell.written >= since) {
      if (cell.written < block_) {
        fail("racecheck", "what another block writes", is_write);
      }
      if (cell.written == segment_ && cell.writer != thread) {
        fail(
            "racecheck",
            "what another thread writes, with no barrier between",
            is_write);
      }
    }
    if (!is_write) {
      if (cell.read < since) {
        cell.first_read = segment_;
      }
      cell.reader = cell.read == segment_ && cell.reader != thread
                        ? kSeveralThreads
                        : thread;
      cell.read = segment_;
      return;
    }
    if (cell.read >= since) {
      if (cell.first_read < block_) {
        fail("racecheck", "what another block reads", is_write);
      }
      if (cell.read == segment_ && cell.reader != thread) {
        fail(
            "racecheck",
            "what another thread reads, with no barrier between",
            is_write);
      }
    }
    cell.written = segment_;
    cell.writer = thread;
  }

  [[noreturn]] void fail(const char* check, const char* text, bool is_write)
      const {
    std::fprintf(
        stderr,
        "cuda_shim %s: thread %u of block (%u, %u) %s %s; seed %llu\n",
        check,
        kernel.thread.x,
        kernel.block.x,
        kernel.block.y,
        is_write ? "writes" : "reads",
        text,
        static_cast<unsigned long long>(process_seed()));
    std::abort();
  }

  bool is_running_ = false;
  Segment segment_ = 0;
  Segment launch_ = 0; ///< the first of the launch
  Segment block_ = 0; ///< the first of the block
  Buffer shared_;
  std::mutex mutex_; ///< tensors may come from several threads
  std::map<uintptr_t, std::unique_ptr<Buffer>> buffers_; ///< by zone_begin
  uintptr_t zones_begin_ = UINTPTR_MAX; ///< of all that there ever were
  uintptr_t zones_end_ = 0;
  std::array<const Buffer*, 8> latest_{};
  size_t next_latest_ = 0;
};

} // namespace

void add_buffer(
    const void* zone_begin,
    const void* begin,
    const void* end,
    const void* zone_end) {
#if defined(TESSERA_SHIM_CHECKS)
  Checks::get().add(std::unique_ptr<Buffer>(new Buffer{
      number_of(zone_begin),
      number_of(begin),
      number_of(end),
      number_of(zone_end),
      Cells(number_of(end) - number_of(begin))}));
#else
  (void)zone_begin, (void)begin, (void)end, (void)zone_end;
#endif
}

void remove_buffer(const void* zone_begin) {
#if defined(TESSERA_SHIM_CHECKS)
  Checks::get().remove(number_of(zone_begin));
#else
  (void)zone_begin;
#endif
}

void begin_launch() {
  Checks::get().begin_launch();
}
void begin_block() {
  Checks::get().begin_block();
}
void pass_barrier() {
  Checks::get().pass_barrier();
}
void end_launch() {
  Checks::get().end_launch();
}

void check_access(const void* address, size_t bytes, bool is_write) {
  Checks::get().access(number_of(address), bytes, is_write);
}

} // namespace tessera::tests::cuda_shim

#if defined(TESSERA_SHIM_CHECKS)
// What GCC and Clang call in code compiled with -fsanitize=thread.
extern "C" {

#define TESSERA_SHIM_ACCESS(bytes)                                  \
  void __tsan_read##bytes(void* address) {                          \
    tessera::tests::cuda_shim::check_access(address, bytes, false); \
  }                                                                 \
  void __tsan_write##bytes(void* address) {                         \
    tessera::tests::cuda_shim::check_access(address, bytes, true);  \
  }                                                                 \
  void __tsan_unaligned_read##bytes(void* address) {                \
    tessera::tests::cuda_shim::check_access(address, bytes, false); \
  }                                                                 \
  void __tsan_unaligned_write##bytes(void* address) {               \
    tessera::tests::cuda_shim::check_access(address, bytes, true);  \
  }
TESSERA_SHIM_ACCESS(1)
TESSERA_SHIM_ACCESS(2)
TESSERA_SHIM_ACCESS(4)
TESSERA_SHIM_ACCESS(8)
TESSERA_SHIM_ACCESS(16)
#undef TESSERA_SHIM_ACCESS

void __tsan_read_range(void* address, unsigned long bytes) {
  tessera::tests::cuda_shim::check_access(address, bytes, false);
}
void __tsan_write_range(void* address, unsigned long bytes) {
  tessera::tests::cuda_shim::check_access(address, bytes, true);
}
void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
  tessera::tests::cuda_shim::check_access(from, bytes, false);
  tessera::tests::cuda_shim::check_access(to, bytes, true);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, unsigned long bytes) {
  tessera::tests::cuda_shim::check_access(to, bytes, true);
  return std::memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void*) {}
void __tsan_vptr_update(void*, void*) {}

} // extern "C"
#endif
