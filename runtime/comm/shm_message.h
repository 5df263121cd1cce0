// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ShmMessage` says which collective a rank is in.

#include <cstdint>

namespace tessera::runtime {

enum class CollectiveKind : int32_t {
  kNone,
  kGather,
  kSum,
  kMax,
  kSumFull,
  kMaxFull,
  kExchange
};

/// A message that a rank publishes to its peers: in one turn of the ring buffer
/// (ShmQueue), or for one collective.
struct ShmMessage {
  CollectiveKind kind = CollectiveKind::kNone;
  int32_t dtype = 0;
  int64_t bytes = 0; ///< of the whole collective, to detect mismatches
  /// Address of the bytes in the sender's memory, or 0 if they are in the
  /// payload.
  uint64_t address = 0;
};

/// Checks that two ranks are in the same collective.
/// @throws tessera::Error otherwise.
void check_same_collective(
    const ShmMessage& self_message,
    int rank,
    const ShmMessage& peer_message,
    int peer);

} // namespace tessera::runtime
