// SPDX-License-Identifier: Apache-2.0
#pragma once
// `FileLock` lets one process at a time write to a folder.

#include <chrono>
#include <filesystem>
#include <string>

#include "tessera/runtime/core/unique_fd.h"

namespace tessera::runtime {

/// An exclusive lock on a file (flock), held until destruction or the death of
/// the process, however it ends. The file says which process holds the lock and
/// stays when the lock is released. On a file system without locks there is a
/// warning and no lock.
class FileLock {
 public:
  /// Creates the file if it does not exist. Blocks for at most `patience`,
  /// during which a process that is being killed can end.
  /// @param label begins the error: "output.folder 'runs/a'".
  /// @throws Error if another process has the lock, naming its pid and host, or
  ///   if the file cannot be opened.
  explicit FileLock(
      const std::filesystem::path& file,
      const std::string& label,
      std::chrono::milliseconds patience = std::chrono::seconds(2));

 private:
  UniqueFd fd_;
};

} // namespace tessera::runtime
