// SPDX-License-Identifier: Apache-2.0
#pragma once
// What files and folders that appear whole have in common.

#include <filesystem>

namespace tessera::detail {

/// @param what was tried, e.g. "read". @param code errno of it.
/// @throws tessera::Error naming both, the path and the remedy.
[[noreturn]] void fail_on(
    const char* what,
    const std::filesystem::path& path,
    int code);

/// Makes a rename durable: the name lives in the folder. Blocks.
/// @param folder empty: the working folder.
void sync_folder(const std::filesystem::path& folder);

} // namespace tessera::detail
