// SPDX-License-Identifier: Apache-2.0
#pragma once
// `HubCache` is the folder where files of the Hub are kept, in the layout of
// huggingface_hub.

#include "tessera/runtime/core/unique_fd.h"
#include "tessera/runtime/hub/hub_listing.h"

#include <filesystem>
#include <optional>
#include <string>

namespace tessera::runtime {

/// Of one repository: blobs/ has contents, named by their hashes;
/// snapshots/COMMIT/ links to them by their paths; refs/ says which commits
/// branches and tags were when they were fetched.
class HubCache {
 public:
  /// Creates nothing.
  /// @param root HubSettings::cache.
  HubCache(const std::filesystem::path& root, const HubName& name);

  std::filesystem::path snapshot(const std::string& commit) const;
  /// The commit that a branch or tag was, or that a commit is; nothing if it
  /// was never fetched.
  std::optional<std::string> known_commit(const std::string& revision) const;
  std::filesystem::path blob(const HubFile& file) const;

  void make_folders(const std::string& commit) const;
  /// Gives the content its path in the snapshot.
  void link(const std::string& commit, const HubFile& file) const;
  void set_commit(const std::string& revision, const std::string& commit) const;

  /// Waits, and says so, for whoever has the lock; held until destroyed, or
  /// the process ends. Processes on the same file system exclude each other,
  /// and huggingface_hub for the locks that are named by hashes.
  /// @param label of what is waited for, in the line of the log.
  UniqueFd lock(const std::string& name, const std::string& label) const;
  std::filesystem::path lock_file(const std::string& name) const;

 private:
  std::filesystem::path folder_;
  std::filesystem::path locks_;
};

} // namespace tessera::runtime
