// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AtomicFolder` fills a folder that appears complete or not at all.

#include "tessera/runtime/core/unique_fd.h"

#include <filesystem>
#include <functional>
#include <string>

namespace tessera::runtime {

/// A temporary folder ".NAME.partial" next to its final place. What exists at
/// the final place stays until commit(). Used by one thread of one process; it
/// may have other processes write files into the temporary folder meanwhile.
/// All functions block on the disk and throw Error naming the folder, the
/// system's reason and the remedy.
class AtomicFolder {
 public:
  /// Says whether a file or folder of this name may be in a folder that is
  /// replaced.
  using IsOwn = std::function<bool(const std::string& name)>;

  /// Creates the temporary folder, and the parents of `path`. Removes what an
  /// earlier process left there.
  /// @param is_own null: a folder at `path` is replaced whatever it contains.
  /// @throws Error also if a folder at `path` contains anything else, or while
  ///   another process fills the same folder.
  explicit AtomicFolder(const std::filesystem::path& path, IsOwn is_own = {});

  /// Removes the temporary folder unless commit() was called.
  ~AtomicFolder();

  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  /// Where to put the files; the caller makes each of them durable.
  const std::filesystem::path& temporary() const {
    return temporary_;
  }
  /// The final place, absolute, with links resolved.
  const std::filesystem::path& path() const {
    return path_;
  }

  /// The temporary folder that another process fills for `path`, which is as
  /// path() gives it.
  static std::filesystem::path temporary_of(const std::filesystem::path& path);

  /// Replaces what is at the final place, in one step if the file system can
  /// exchange two folders (ext4, xfs, btrfs, tmpfs); elsewhere (NFS) a kill
  /// between two renames leaves the old folder as ".NAME.old".
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  IsOwn is_own_;
  UniqueFd lock_; ///< of the temporary folder
  bool committed_ = false;
};

/// The absolute path of a folder, with links resolved and without a slash at
/// its end.
/// @throws Error if it has no name.
std::filesystem::path resolved_folder(const std::filesystem::path& path);

/// @throws Error if something at `path` is not a folder, or contains anything
///   that `is_own`, if given, does not accept.
void check_replaceable(
    const std::filesystem::path& path,
    const AtomicFolder::IsOwn& is_own);

/// Removes a folder in such a way that no part of it is ever visible under its
/// name.
/// @throws Error naming the folder and the system's reason.
void remove_folder(const std::filesystem::path& path);

} // namespace tessera::runtime
