// SPDX-License-Identifier: Apache-2.0
#pragma once
// `fail_on()` and `sync_folder()` are shared by atomic files and atomic
// folders.

#include <filesystem>

namespace tessera::runtime::detail {

/// @param what the operation that failed, e.g. "read".
/// @param code its errno.
/// @throws tessera::Error naming both, the path and the remedy.
[[noreturn]] void fail_on(
    const char* what,
    const std::filesystem::path& path,
    int code);

/// Makes a rename in `folder` durable. Blocks.
/// @param folder empty means the working folder.
void sync_folder(const std::filesystem::path& folder);

} // namespace tessera::runtime::detail
