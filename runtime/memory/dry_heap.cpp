// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/dry_heap.h"

#include "tessera/runtime/core/error.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// What the context of a DataPtr points to.
struct DryBlock {
  std::shared_ptr<DryHeap> heap;
  std::byte* data;
  size_t bytes;
  bool is_mapped;
  bool is_counted;
  std::atomic<bool> has_values;
  bool had_values; ///< at any time: it may have been written

  void count(int64_t change) const {
    if (is_counted) {
      heap->count(change);
    }
  }
};

namespace {

// Below it, a page of the system is not worth a mapping.
constexpr size_t kSmallestMapped = size_t{64} << 10;
// Below it, a block is not worth a page.
constexpr size_t kSmallestPaged = size_t{4} << 10;
// Written mappings above it, such as those of kernels that are tried, are given
// back to the system: they would take its memory until the process ends.
constexpr size_t kMostWrittenKept = size_t{32} << 20;
// As LibTorch aligns CPU tensors.
constexpr size_t kDryAlignment = 64;

/// All blocks by their end, so that upper_bound() finds the one around an
/// address.
struct DryBlocks {
  std::mutex mutex;
  std::map<const std::byte*, DryBlock*> by_end;
  std::atomic<int64_t> count{0};

  /// The caller holds the mutex.
  DryBlock* find(const void* data) {
    const auto* address = static_cast<const std::byte*>(data);
    const auto found = by_end.upper_bound(address);
    return found != by_end.end() && found->second->data <= address
               ? found->second
               : nullptr;
  }
};

DryBlocks& dry_blocks() {
  // Never destroyed: tensors may be freed at the very end of the process.
  static auto* made = new DryBlocks();
  return *made;
}

/// Mappings that are free again, by their size: layers ask for the same sizes
/// again and again, and mapping costs more than all else that an operator of a
/// dry run does.
class FreeMappings {
 public:
  /// @param most mappings that are kept.
  explicit FreeMappings(size_t most) : most_(most) {}

  /// @return null if there is none of this size.
  std::byte* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = by_bytes_.find(bytes);
    if (found == by_bytes_.end()) {
      return nullptr;
    }
    std::byte* data = found->second.back();
    found->second.pop_back();
    --count_;
    if (found->second.empty()) {
      by_bytes_.erase(found);
    }
    return data;
  }

  /// @return false if there are enough.
  bool keep(std::byte* data, size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (count_ == most_) {
      return false;
    }
    by_bytes_[bytes].push_back(data);
    ++count_;
    return true;
  }

 private:
  size_t most_;
  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<std::byte*>> by_bytes_;
  size_t count_ = 0;
};

/// Those that were not written, so that they read as zeros, or those that were,
/// for what is computed: they have their pages of the system already.
FreeMappings& free_mappings(bool were_written) {
  // Never destroyed, as the blocks. Linux allows a process 65530 mappings.
  static auto* unwritten = new FreeMappings(16384);
  static auto* written = new FreeMappings(16);
  return were_written ? *written : *unwritten;
}

std::byte* map_addresses(size_t bytes) {
  void* data = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  TESSERA_CHECK(
      data != MAP_FAILED,
      "a dry run found no {} bytes of addresses; raise the limit of virtual memory (ulimit -v)",
      bytes);
  return static_cast<std::byte*>(data);
}

/// Blocks of whole pages that are not worth a mapping each, of which there may
/// be more than a process has mappings: those of experts, for one. They read as
/// zeros, and take memory of the system only where they are written.
class PagedBlocks {
 public:
  std::byte* take(size_t bytes, bool will_be_written) {
    const size_t pages = pages_of(bytes);
    const std::lock_guard lock(mutex_);
    if (!unwritten_[pages].empty() &&
        (!will_be_written || written_[pages].empty())) {
      return last_of(unwritten_[pages]);
    }
    if (!written_[pages].empty()) {
      std::byte* data = last_of(written_[pages]);
      std::fill_n(data, bytes, std::byte{0});
      return data;
    }
    const size_t full = pages * kSmallestPaged;
    if (rest_ < full) {
      next_ = map_addresses(kChunk);
      rest_ = kChunk;
    }
    rest_ -= full;
    return std::exchange(next_, next_ + full);
  }

  void keep(std::byte* data, size_t bytes, bool was_written) {
    const size_t pages = pages_of(bytes);
    const std::lock_guard lock(mutex_);
    (was_written ? written_ : unwritten_)[pages].push_back(data);
  }

 private:
  static constexpr size_t kChunk = size_t{256} << 20;
  static constexpr size_t kMostPages = kSmallestMapped / kSmallestPaged;
  using Blocks = std::array<std::vector<std::byte*>, kMostPages + 1>;

  static size_t pages_of(size_t bytes) {
    return (bytes + kSmallestPaged - 1) / kSmallestPaged;
  }
  static std::byte* last_of(std::vector<std::byte*>& blocks) {
    std::byte* data = blocks.back();
    blocks.pop_back();
    return data;
  }

  std::mutex mutex_;
  Blocks written_; ///< by pages
  Blocks unwritten_;
  std::byte* next_ = nullptr;
  size_t rest_ = 0; ///< bytes from `next_`
};

PagedBlocks& paged_blocks() {
  static auto* made = new PagedBlocks(); // never destroyed, as the blocks
  return *made;
}

std::byte* take_memory(size_t bytes, bool is_mapped, bool has_values) {
  if (!is_mapped && bytes >= kSmallestPaged) {
    return paged_blocks().take(bytes, has_values);
  }
  if (!is_mapped) {
    const size_t full = (bytes + kDryAlignment - 1) & ~(kDryAlignment - 1);
    void* data = std::aligned_alloc(kDryAlignment, full);
    TESSERA_CHECK(data != nullptr, "a dry run found no {} bytes", bytes);
    std::fill_n(static_cast<std::byte*>(data), full, std::byte{0});
    return static_cast<std::byte*>(data);
  }
  std::byte* free = has_values ? free_mappings(true).take(bytes) : nullptr;
  free = free == nullptr ? free_mappings(false).take(bytes) : free;
  if (free != nullptr) {
    return free;
  }
  return map_addresses(bytes);
}

void free_block(void* data) {
  free_dry_block(data);
}

} // namespace

void DryHeap::count(int64_t change) {
  const int64_t now = live_ += change;
  int64_t peak = peak_;
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  if (watcher_) {
    watcher_(now, change);
  }
}

c10::DataPtr DryHeap::allocate(size_t bytes, bool has_values) {
  return make_block(bytes, has_values, true);
}

c10::DataPtr DryHeap::allocate_uncounted(size_t bytes) {
  return make_block(bytes, false, false);
}

c10::DataPtr DryHeap::make_block(
    size_t bytes,
    bool has_values,
    bool is_counted) {
  if (bytes == 0) {
    return {nullptr, nullptr, &free_block, c10::kCPU};
  }
  const bool is_mapped = bytes >= kSmallestMapped;
  std::byte* data = take_memory(bytes, is_mapped, has_values);
  auto* block = new DryBlock{
      shared_from_this(),
      data,
      bytes,
      is_mapped,
      is_counted,
      has_values || !is_mapped,
      has_values};
  DryBlocks& all = dry_blocks();
  {
    const std::lock_guard lock(all.mutex);
    all.by_end.emplace(data + bytes, block);
    ++all.count;
  }
  block->count(static_cast<int64_t>(bytes));
  return {data, data, &free_block, c10::kCPU};
}

bool is_dry_memory(const void* data) {
  DryBlocks& all = dry_blocks();
  if (all.count.load(std::memory_order_relaxed) == 0 || data == nullptr) {
    return false;
  }
  const std::lock_guard lock(all.mutex);
  return all.find(data) != nullptr;
}

bool has_dry_values(const void* data) {
  if (data == nullptr) {
    return false;
  }
  DryBlocks& all = dry_blocks();
  const std::lock_guard lock(all.mutex);
  const DryBlock* block = all.find(data);
  return block == nullptr || block->has_values;
}

bool is_uncounted_dry_memory(const void* data) {
  if (data == nullptr) {
    return false;
  }
  DryBlocks& all = dry_blocks();
  const std::lock_guard lock(all.mutex);
  const DryBlock* block = all.find(data);
  return block != nullptr && !block->is_counted;
}

void set_dry_values(const void* data, bool has_values) {
  DryBlocks& all = dry_blocks();
  const std::lock_guard lock(all.mutex);
  if (DryBlock* block = all.find(data)) {
    block->has_values = has_values;
    block->had_values = block->had_values || has_values;
  }
}

bool free_dry_block(void* data) {
  DryBlocks& all = dry_blocks();
  if (all.count.load(std::memory_order_relaxed) == 0 || data == nullptr) {
    return false;
  }
  std::unique_ptr<DryBlock> block;
  {
    const std::lock_guard lock(all.mutex);
    block.reset(all.find(data));
    if (block == nullptr) {
      return false;
    }
    all.by_end.erase(block->data + block->bytes);
    --all.count;
  }
  if (block->is_mapped) {
    const bool may_keep =
        !block->had_values || block->bytes <= kMostWrittenKept;
    if (!may_keep ||
        !free_mappings(block->had_values).keep(block->data, block->bytes)) {
      ::munmap(block->data, block->bytes);
    }
  } else if (block->bytes >= kSmallestPaged) {
    paged_blocks().keep(
        block->data, block->bytes, block->had_values || block->has_values);
  } else {
    std::free(block->data);
  }
  block->count(-static_cast<int64_t>(block->bytes));
  return true;
}

DryAllocation& dry_allocation() {
  static thread_local DryAllocation current;
  return current;
}

} // namespace tessera::runtime
