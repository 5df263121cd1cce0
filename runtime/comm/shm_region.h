// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmRegion` is the memory that ranks of one host share: for each rank a ring
// buffer of messages, and the counters and doorbells for synchronization.

#include "tessera/runtime/comm/shm_message.h"
#include "tessera/runtime/core/unique_fd.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::runtime {

inline constexpr uint64_t kShmRingSlots = 16;

/// A rank's part of the region. Counters only grow: turn t is published before
/// `published` becomes t + 1, and read from all peers before `consumed` becomes
/// t + 1.
struct alignas(64) ShmRank {
  /// A futex, incremented whenever a peer has published, consumed or left.
  alignas(64) std::atomic<uint32_t> doorbell;
  std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint64_t> published;
  alignas(64) std::atomic<uint64_t> consumed;
  alignas(64) std::atomic<uint32_t> left;
  std::atomic<uint32_t> state; ///< of the setup, see ShmPeers
  std::atomic<int64_t> pid;
  std::atomic<uint64_t> probe_address;
  ShmMessage messages[kShmRingSlots];
};

/// [Note: anonymous shared memory] The region is a memfd that the first rank
/// creates and the others open as /proc/<pid>/fd/<fd>. It has no name, so
/// nothing is left behind however the ranks end. Its pages are reserved on
/// creation, so that a host without enough memory reports it then and not with
/// a SIGBUS later.
class ShmRegion {
 public:
  /// Creates the region, on the first rank.
  /// @throws tessera::Error when there is not enough memory.
  static ShmRegion create(int ranks);

  /// Opens the region, on the other ranks.
  /// @param address address() of the creator.
  /// @throws tessera::Error when it cannot be opened, e.g. for lack of
  ///   permission.
  static ShmRegion attach(const std::string& address, int ranks);

  ShmRegion(ShmRegion&& other) noexcept;
  ShmRegion& operator=(ShmRegion&&) = delete;
  ~ShmRegion();

  /// Text by which other processes find the region: "pid fd nonce".
  std::string address() const;
  uint64_t nonce() const;

  /// Records why the ranks cannot continue, unless a reason has been recorded.
  /// @return the first reason recorded.
  std::string first_failure(const std::string& reason) const;

  ShmRank& rank(int r) const;

  /// The slot_bytes() bytes in which rank `r` publishes data in turn `turn`.
  std::byte* payload(int r, uint64_t turn) const;
  int64_t slot_bytes() const {
    return slot_bytes_;
  }

 private:
  struct Header;

  ShmRegion(UniqueFd file, int ranks);
  static int64_t payload_begin(int ranks);
  static int64_t region_bytes(int ranks);
  static bool is_region(const std::string& path, int ranks);
  Header& header() const;

  UniqueFd file_;
  int ranks_;
  int64_t slot_bytes_;
  int64_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

/// Sleeps until `word` differs from `seen`, a wake-up, or `timeout_ms`.
void futex_wait(std::atomic<uint32_t>& word, uint32_t seen, int timeout_ms);
void futex_wake_all(std::atomic<uint32_t>& word);

/// Rings a rank's doorbell, which wakes the threads that sleep on it.
void ring(ShmRank& rank);

} // namespace tessera::runtime
