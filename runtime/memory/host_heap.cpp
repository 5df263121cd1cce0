// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/host_heap.h"

#include "tessera/runtime/core/round_up.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace tessera::runtime {

namespace {

constexpr size_t kHugePage = 2 << 20;
// The range of addresses, by the memory of the machine at the start. Addresses
// cost nothing until they are used, and the memory of a virtual machine may
// grow.
constexpr size_t kSmallestRange = size_t{256} << 30;
constexpr size_t kRangeFactor = 4;

/// Reserves addresses; null where the process may not have so many.
void* reserve(size_t bytes) {
  void* range = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  return range == MAP_FAILED ? nullptr : range;
}

} // namespace

size_t bytes_of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0
             ? static_cast<size_t>(pages) * static_cast<size_t>(page_bytes)
             : 0;
}

void prefer_huge_pages(void* data, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) {
    // A refusal only costs time.
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
}

HostHeap::HostHeap(size_t (*memory_bytes)())
    : memory_bytes_(memory_bytes), most_bytes_(memory_bytes()) {
  size_t bytes = 0;
  // With room to begin at a huge page. Under a limit of addresses, as many as
  // there is memory now.
  for (const size_t wanted :
       {std::max(kSmallestRange, kRangeFactor * most_bytes_), most_bytes_}) {
    bytes = wanted / kHugePage * kHugePage;
    range_ = bytes == 0 ? nullptr : reserve(bytes + kHugePage);
    if (range_ != nullptr) {
      break;
    }
  }
  if (range_ == nullptr) {
    return; // an empty heap: every take() returns null
  }
  const auto address = reinterpret_cast<uintptr_t>(range_);
  base_ = static_cast<std::byte*>(range_) +
          (round_up(address, kHugePage) - address);
  bytes_ = bytes;
  returned_.resize(bytes / kHugePage);
  prefer_huge_pages(base_, bytes_);
  add_free(0, bytes_);
}

HostHeap::~HostHeap() {
  if (base_ != nullptr) {
    ::munmap(range_, bytes_ + kHugePage);
  }
}

void HostHeap::add_free(size_t offset, size_t bytes) {
  free_by_size_.emplace(bytes, offset);
  free_by_offset_.emplace(offset, bytes);
}

void HostHeap::remove_free(size_t offset, size_t bytes) {
  free_by_size_.erase({bytes, offset});
  free_by_offset_.erase(offset);
}

void* HostHeap::take(size_t bytes) {
  const size_t wanted = round_up(bytes, kGranule);
  const std::lock_guard lock(mutex_);
  if (wanted > most_bytes_ - std::min(most_bytes_, in_use_)) {
    most_bytes_ = memory_bytes_(); // it may have grown
    if (wanted > most_bytes_ - std::min(most_bytes_, in_use_)) {
      return nullptr;
    }
  }
  const auto found = free_by_size_.lower_bound({wanted, 0});
  if (found == free_by_size_.end()) {
    return nullptr;
  }
  const auto [size, offset] = *found;
  remove_free(offset, size);
  if (size > wanted) {
    add_free(offset + wanted, size - wanted);
  }
  in_use_ += wanted;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
  touch(offset, wanted);
  return base_ + offset;
}

size_t HostHeap::resident_bytes() const {
  return touched_end_ - returned_bytes_;
}

void HostHeap::touch(size_t offset, size_t bytes) {
  const size_t before = resident_bytes();
  const size_t end = offset + bytes;
  for (size_t page = offset / kHugePage; page * kHugePage < end; ++page) {
    if (returned_[page]) {
      returned_[page] = false;
      returned_bytes_ -= kHugePage;
    }
  }
  touched_end_ = std::max(touched_end_, end);
  if (resident_bytes() == before) {
    return;
  }
  // The largest first: they are the least likely to be used soon.
  for (auto block = free_by_size_.rbegin();
       block != free_by_size_.rend() && resident_bytes() > peak_in_use_;
       ++block) {
    return_pages(block->second, block->first, resident_bytes() - peak_in_use_);
  }
}

void HostHeap::return_pages(size_t offset, size_t block_bytes, size_t bytes) {
  const size_t end = std::min(offset + block_bytes, touched_end_) / kHugePage;
  size_t first = round_up(offset, kHugePage) / kHugePage;
  const size_t before = returned_bytes_;
  while (first < end && returned_bytes_ - before < bytes) {
    size_t last = first; // of pages to return at once
    while (last < end && !returned_[last] && returned_bytes_ - before < bytes) {
      returned_[last++] = true;
      returned_bytes_ += kHugePage;
    }
    if (last > first) {
      ::madvise(
          base_ + first * kHugePage, (last - first) * kHugePage, MADV_DONTNEED);
    }
    first = last + 1;
  }
}

void HostHeap::give_back(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  size_t size = round_up(bytes, kGranule);
  auto offset = static_cast<size_t>(static_cast<std::byte*>(data) - base_);
  in_use_ -= size;
  const auto after = free_by_offset_.lower_bound(offset);
  const FreeBlock behind = after != free_by_offset_.end()
                               ? FreeBlock{after->second, after->first}
                               : FreeBlock{0, bytes_};
  const FreeBlock before =
      after != free_by_offset_.begin()
          ? FreeBlock{std::prev(after)->second, std::prev(after)->first}
          : FreeBlock{0, 0};
  if (behind.first > 0 && behind.second == offset + size) {
    remove_free(behind.second, behind.first);
    size += behind.first;
  }
  if (before.first > 0 && before.second + before.first == offset) {
    remove_free(before.second, before.first);
    offset = before.second;
    size += before.first;
  }
  add_free(offset, size);
}

void HostHeap::forget_from(size_t offset) {
  for (size_t page = round_up(offset, kHugePage) / kHugePage;
       page * kHugePage < touched_end_;
       ++page) {
    if (returned_[page]) {
      returned_[page] = false;
      returned_bytes_ -= kHugePage;
    }
  }
  touched_end_ = offset;
}

void HostHeap::release() {
  const std::lock_guard lock(mutex_);
  for (const auto& [offset, bytes] : free_by_offset_) {
    if (offset + bytes == bytes_ && offset < touched_end_) {
      ::madvise(base_ + offset, touched_end_ - offset, MADV_DONTNEED);
      forget_from(offset);
    } else {
      return_pages(offset, bytes, bytes);
    }
  }
  peak_in_use_ = in_use_;
}

size_t HostHeap::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return resident_bytes() - in_use_;
}

} // namespace tessera::runtime
