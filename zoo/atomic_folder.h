// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders that appear whole or not at all.

#include <filesystem>
#include <functional>
#include <string>

namespace tessera::zoo {

/// A folder being filled beside its final place. What stands at the final place
/// stays until commit(); a process that dies before leaves only a folder
/// `<name>.tmp-<pid>` behind. Used by one thread; every operation blocks and
/// throws Error naming the folder and the system's reason.
class AtomicFolder {
 public:
  /// Creates the temporary folder, and the parents of `path`.
  /// @param is_own whether a file or folder may be in it, by its name.
  /// Something at `path` that holds anything else is not ours to replace.
  /// @throws Error also when there is such a thing at `path`.
  AtomicFolder(
      const std::filesystem::path& path,
      std::function<bool(const std::string& name)> is_own);

  /// Removes the temporary folder unless commit() was called.
  ~AtomicFolder();

  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to put the files, each made durable by whoever writes it.
  const std::filesystem::path& temporary() const {
    return temporary_;
  }
  const std::filesystem::path& path() const {
    return path_;
  }

  /// Puts the folder in place of what was there, in one step where the file
  /// system can exchange two folders (ext4, xfs, btrfs, tmpfs); elsewhere (NFS)
  /// a kill between two renames leaves the old one as `<name>.old-<pid>`.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::function<bool(const std::string& name)> is_own_;
  bool committed_ = false;
};

/// @throws Error when there is something at `path` that is no folder, or holds
///     other things than `is_own` names.
void check_replaceable(
    const std::filesystem::path& path,
    const std::function<bool(const std::string& name)>& is_own);

} // namespace tessera::zoo
