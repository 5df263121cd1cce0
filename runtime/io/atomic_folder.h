// SPDX-License-Identifier: Apache-2.0
#pragma once
// `begin_folder()` and `commit_folder()` write a folder that appears complete
// or not at all. One process calls them; others may write files into the folder
// between the two calls.

#include <filesystem>

namespace tessera::runtime {

/// The folder to write to until `final_path` is committed: ".NAME.partial" next
/// to it.
std::filesystem::path partial_folder_of(
    const std::filesystem::path& final_path);

/// Creates the empty partial folder and its parents. Removes what an earlier
/// run left there.
/// @throws Error naming the folder and the system's reason.
void begin_folder(const std::filesystem::path& final_path);

/// Makes the partial folder durable and moves it to its final name. An existing
/// folder is exchanged for it atomically, then removed. The files must be
/// durable already. Blocks on the disk.
/// @throws Error naming the folder and the system's reason; the final name is
///   then unchanged.
void commit_folder(const std::filesystem::path& final_path);

/// Removes a folder in such a way that no part of it is ever visible under its
/// name.
/// @throws Error naming the folder and the system's reason.
void remove_folder(const std::filesystem::path& path);

} // namespace tessera::runtime
