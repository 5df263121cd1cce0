// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders that appear whole or not at all. For one process; others may write
// files into the folder between begin and commit.

#include <filesystem>

namespace tessera {

/// Where `final_path` is written until it is committed: ".NAME.partial" beside
/// it.
std::filesystem::path partial_folder_of(
    const std::filesystem::path& final_path);

/// Makes the empty partial folder, and its parents. What a run that died left
/// there is removed.
/// @throws Error naming the folder and the system's reason.
void begin_folder(const std::filesystem::path& final_path);

/// Makes the partial folder durable and moves it to its final name. A folder
/// that is there already is exchanged for it in one step, then removed. The
/// files must have been made durable. Blocks on the disk.
/// @throws Error naming the folder and the system's reason; then the final
///   name is as it was.
void commit_folder(const std::filesystem::path& final_path);

/// Removes a folder so that no part of it is ever seen under its name.
/// @throws Error naming the folder and the system's reason.
void remove_folder(const std::filesystem::path& path);

} // namespace tessera
