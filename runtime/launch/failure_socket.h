// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FailureSocket` receives the messages of ranks that failed because of another
// rank.

#include "tessera/runtime/core/unique_fd.h"

#include <optional>
#include <string>

namespace tessera::runtime {

/// The launcher's end of blame_peer(): a socket in the abstract namespace. It
/// works through wrappers that close files or change folders, and leaves
/// nothing behind. Other processes that write to it can only change which of
/// several failed ranks determines the exit code of the job.
class FailureSocket {
 public:
  /// @throws Error when the socket cannot be created.
  FailureSocket();

  /// Readable when a message has arrived.
  int fd() const {
    return fd_.get();
  }
  /// The value of kLauncherSocketVariable for the ranks.
  const std::string& name() const {
    return name_;
  }
  /// Number of the next rank that blames another one, if any. Does not block.
  std::optional<int> next();
  /// Drops the messages that have arrived.
  void discard() {
    while (next()) {
    }
  }

 private:
  UniqueFd fd_;
  std::string name_;
};

} // namespace tessera::runtime
