// SPDX-License-Identifier: Apache-2.0
#pragma once
// `fetch()` makes files of the Hugging Face Hub local, and local_path() and
// local_model() do so where something is named that may be there.

#include "tessera/runtime/hub/hub_name.h"
#include "tessera/runtime/hub/hub_settings.h"

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::runtime {

struct FetchOptions {
  /// Patterns as a shell's of the paths to fetch, in place of what a model is
  /// loaded from; an asterisk stands for slashes, too.
  std::vector<std::string> include;
  bool weights = true; ///< of models; not: for a plan, or texts
  /// Whether a commit that a process on this machine has fetched within the
  /// last minute is good enough: ranks of a job get the same.
  bool takes_recent = false;
};

/// Fetches what the cache lacks of a model (see model_files()) or of a data
/// set's files: those that HubName::path names, as a file, a folder, a token
/// file without its suffix, or a pattern. Verifies sizes and hashes; what is
/// interrupted goes on where it stopped. Processes that share the cache do it
/// once. Without a connection, or offline, takes what the cache has, and says
/// so. Blocks.
/// @return where they are, named as in the repository: the folder of the
///     snapshot and HubName::path. The files are the cache's: do not change
///     them.
/// @throws tessera::Error if the Hub does not have them or refuses, the
///     connection fails, or the disk is full.
std::filesystem::path fetch(
    const HubName& name,
    const FetchOptions& options = {},
    const HubSettings& settings = HubSettings::from_environment());

/// The name with the commit for its revision, of a fetch on this machine; as it
/// is if there was none.
HubName pinned(
    const HubName& name,
    const HubSettings& settings = HubSettings::from_environment());

/// A path as it is; of a name that begins with "hf://" what fetch() returns,
/// recent commits included.
/// @param weights FetchOptions::weights.
/// @throws tessera::Error as fetch().
std::filesystem::path local_path(
    const std::filesystem::path& path,
    bool weights = true);

/// As local_path(), and also "org/name" is fetched if there is no such path.
/// @throws tessera::Error as fetch().
std::filesystem::path local_model(const std::filesystem::path& path);

} // namespace tessera::runtime
