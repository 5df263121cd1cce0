// SPDX-License-Identifier: Apache-2.0
#pragma once
// `CollectiveError` is the failure of a collective whose cause is known.

#include "tessera/runtime/core/error.h"

#include <string>
#include <string_view>

namespace tessera::runtime {

/// Its message says why the collective failed, so that no cause is guessed.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

// The message of a failure passes from rank to rank in shared memory.
inline constexpr std::string_view kLostPeer = "; its own error says why";

/// The message when a peer is gone.
/// @param rank its number in the job.
/// @param left it has closed its communicator; else its process has ended.
inline std::string lost_peer_text(int rank, bool left) {
  return formatted(
      "rank {}{}{}",
      rank,
      left ? " has left the group" : "'s process has ended",
      kLostPeer);
}

/// Whether a message is one of lost_peer_text().
inline bool names_lost_peer(std::string_view message) {
  return message.ends_with(kLostPeer);
}

} // namespace tessera::runtime
