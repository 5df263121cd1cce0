// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HostHeap` reuses large blocks of host memory instead of returning them to
// the system.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace tessera::runtime {

/// The memory of the machine now.
size_t bytes_of_machine();

/// A training step allocates and frees large blocks again and again. Returning
/// them to the system each time costs a page fault and zeroing for every 4 KiB.
/// This heap takes them from one range of addresses, with huge pages if the
/// system offers them: the smallest free block that is large enough is split,
/// and adjacent free blocks are merged. Blocks in use are at most the memory of
/// the machine, which may grow; the range of addresses is larger, since only
/// blocks that have been used take memory. Where new ones are about to, because
/// no free block that has memory is large enough, free blocks return theirs, so
/// that the heap never has more than was in use at its peak, but for parts of
/// huge pages. Thread-safe.
class HostHeap {
 public:
  /// @param memory_bytes returns how much memory there is; called again when
  ///   that is not enough.
  explicit HostHeap(size_t (*memory_bytes)() = &bytes_of_machine);
  ~HostHeap();
  HostHeap(const HostHeap&) = delete;
  HostHeap& operator=(const HostHeap&) = delete;

  /// Blocks are multiples of this size and aligned to it.
  static constexpr size_t kGranule = 4096;

  /// Returns at least `bytes` uninitialized bytes, or null if no free block is
  /// large enough.
  void* take(size_t bytes);

  /// @param data from take(bytes).
  void give_back(void* data, size_t bytes);

  /// Returns the memory of all free blocks to the system.
  void release();

  /// Bytes of free blocks that still take memory.
  size_t idle_bytes() const;

 private:
  using FreeBlock =
      std::pair<size_t, size_t>; ///< (bytes, offset): sorted by size first

  void add_free(size_t offset, size_t bytes);
  void remove_free(size_t offset, size_t bytes);
  /// Bytes that take memory.
  size_t resident_bytes() const;
  /// From now on, the block takes memory.
  void touch(size_t offset, size_t bytes);
  /// Returns `bytes` of the block's memory to the system, in huge pages from
  /// its beginning, or all of these if they are fewer.
  void return_pages(size_t offset, size_t block_bytes, size_t bytes);
  /// Nothing from here on takes memory any more.
  void forget_from(size_t offset);

  mutable std::mutex mutex_;
  size_t (*memory_bytes_)();
  size_t most_bytes_; ///< blocks in use at most, as last asked
  void* range_ = nullptr; ///< as the system gave it
  std::byte* base_ = nullptr; ///< in it, at a huge page
  size_t bytes_ = 0;
  std::set<FreeBlock> free_by_size_;
  std::map<size_t, size_t> free_by_offset_; ///< offset -> bytes
  size_t in_use_ = 0;
  size_t peak_in_use_ = 0;
  /// Nothing from this offset on has been used since the last release().
  size_t touched_end_ = 0;
  /// By huge page: whether its memory was returned and not used since.
  std::vector<bool> returned_;
  size_t returned_bytes_ = 0;
};

/// Requests huge pages for the range where whole ones fit; the system may
/// decline. For memory that is long-lived or reused and has not been touched
/// yet.
void prefer_huge_pages(void* data, size_t bytes);

} // namespace tessera::runtime
