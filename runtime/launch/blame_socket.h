// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where ranks say that another one is to blame.

#include "tessera/runtime/core/unique_fd.h"

#include <optional>
#include <string>

namespace tessera {

/// The launcher's end of blame_peer(). A socket in the abstract namespace: it
/// reaches ranks through wrappers that close files or change folders, and
/// leaves nothing behind. Whoever else writes to it can only change which of
/// several failed ranks gives the job its exit code.
class BlameSocket {
 public:
  /// @throws Error when the socket cannot be made.
  BlameSocket();

  /// Readable when a rank has said something.
  int fd() const {
    return fd_.get();
  }
  /// What ranks find in kLauncherSocketVariable.
  const std::string& name() const {
    return name_;
  }
  /// The next rank that blames another one, if any. Does not block.
  std::optional<int> next();

 private:
  UniqueFd fd_;
  std::string name_;
};

} // namespace tessera
