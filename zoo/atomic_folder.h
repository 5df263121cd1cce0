// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AtomicFolder` fills a folder that appears whole or not at all.

#include <filesystem>
#include <functional>
#include <string>

namespace tessera::zoo {

/// A temporary folder next to its final place. What exists at the final place
/// stays until commit(); a process that dies earlier leaves only a folder
/// `<name>.tmp-<pid>`. Used by one thread; every operation blocks and throws
/// Error naming the folder and the system's reason.
class AtomicFolder {
 public:
  /// Creates the temporary folder, and the parents of `path`.
  /// @param is_own whether a file or folder of that name may be in the replaced
  ///     folder. A folder at `path` that contains anything else is not
  ///     replaced.
  /// @throws Error also if such a folder exists at `path`.
  AtomicFolder(
      const std::filesystem::path& path,
      std::function<bool(const std::string& name)> is_own);

  /// Removes the temporary folder unless commit() was called.
  ~AtomicFolder();

  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to put the files; the caller makes each of them durable.
  const std::filesystem::path& temporary() const {
    return temporary_;
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Replaces what is at the final place, in one step if the file system can
  /// exchange two folders (ext4, xfs, btrfs, tmpfs); elsewhere (NFS) a kill
  /// between two renames leaves the old folder as `<name>.old-<pid>`.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::function<bool(const std::string& name)> is_own_;
  bool committed_ = false;
};

/// @throws Error if something at `path` is not a folder, or contains anything
///     that `is_own` does not accept.
void check_replaceable(
    const std::filesystem::path& path,
    const std::function<bool(const std::string& name)>& is_own);

} // namespace tessera::zoo
