// SPDX-License-Identifier: Apache-2.0
#pragma once
// Large pieces of host memory that are used again instead of going back to the
// system.

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace tessera {

/// A training step frees and requests large blocks again and again. Handing
/// them back to the system each time costs a page fault and a cleared page for
/// every 4 KiB. Here they come from one range of addresses, made of huge pages
/// where the system offers them: the smallest free piece that is large enough,
/// split; neighbours that are free are joined. The range is as large as the
/// machine's memory; only what has been in use takes some. Thread-safe.
class HostHeap {
 public:
  HostHeap();
  ~HostHeap();
  HostHeap(const HostHeap&) = delete;
  HostHeap& operator=(const HostHeap&) = delete;

  /// Pieces are multiples of this, and aligned to it.
  static constexpr size_t kGranule = 4096;

  /// At least `bytes` bytes of unknown contents, or null when there is no free
  /// piece as large.
  void* take(size_t bytes);

  /// @param data from take(bytes).
  void give_back(void* data, size_t bytes);

  /// Returns the memory of all free pieces to the system.
  void release();

  /// Bytes of free pieces that may still take memory.
  size_t idle_bytes() const;

 private:
  using Piece = std::pair<size_t, size_t>; ///< (bytes, offset): by size first

  void add_free(size_t offset, size_t bytes);
  void remove_free(size_t offset, size_t bytes);

  mutable std::mutex mutex_;
  std::byte* base_ = nullptr;
  size_t bytes_ = 0;
  std::set<Piece> free_by_size_;
  std::map<size_t, size_t> free_by_offset_; ///< offset -> bytes
  size_t in_use_ = 0;
  /// Nothing from here on has been in use since the last release().
  size_t touched_end_ = 0;
};

/// Asks for huge pages where whole ones lie in the range; the system may
/// decline. For memory that lives long or is used again, and has not been
/// touched yet.
void prefer_huge_pages(void* data, size_t bytes);

} // namespace tessera
