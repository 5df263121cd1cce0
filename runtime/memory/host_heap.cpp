// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/memory/host_heap.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace tessera::runtime {

namespace {

constexpr size_t kHugePage = 2 << 20;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

size_t bytes_of_machine() {
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0
             ? static_cast<size_t>(pages) * static_cast<size_t>(page_bytes)
             : 0;
}

} // namespace

void prefer_huge_pages(void* data, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin < end) {
    // A refusal only costs time.
    (void)::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
}

HostHeap::HostHeap() {
  const size_t bytes = bytes_of_machine() / kHugePage * kHugePage;
  void* range = ::mmap(
      nullptr,
      bytes,
      PROT_READ | PROT_WRITE,
      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
      -1,
      0);
  if (bytes == 0 || range == MAP_FAILED) {
    return; // an empty heap: every take() returns null
  }
  base_ = static_cast<std::byte*>(range);
  bytes_ = bytes;
  prefer_huge_pages(base_, bytes_);
  add_free(0, bytes_);
}

HostHeap::~HostHeap() {
  if (base_ != nullptr) {
    ::munmap(base_, bytes_);
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
  touched_end_ = std::max(touched_end_, offset + wanted);
  return base_ + offset;
}

void HostHeap::give_back(void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  size_t size = round_up(bytes, kGranule);
  auto offset = static_cast<size_t>(static_cast<std::byte*>(data) - base_);
  in_use_ -= size;
  const auto after = free_by_offset_.lower_bound(offset);
  const Piece behind = after != free_by_offset_.end()
                           ? Piece{after->second, after->first}
                           : Piece{0, bytes_};
  const Piece before =
      after != free_by_offset_.begin()
          ? Piece{std::prev(after)->second, std::prev(after)->first}
          : Piece{0, 0};
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

void HostHeap::release() {
  const std::lock_guard lock(mutex_);
  size_t used_end = 0;
  for (const auto& [offset, bytes] : free_by_offset_) {
    if (offset < touched_end_) {
      ::madvise(base_ + offset, bytes, MADV_DONTNEED);
    }
    used_end = offset + bytes == bytes_ ? offset : bytes_;
  }
  touched_end_ = used_end;
}

size_t HostHeap::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return touched_end_ > in_use_ ? touched_end_ - in_use_ : 0;
}

} // namespace tessera::runtime
