// SPDX-License-Identifier: Apache-2.0
#pragma once
// `kDirectAlignment`, `fail_on()`, `sync_folder()` and `cut_appended()` are
// shared by what writes files and folders.

#include <cstddef>
#include <filesystem>

namespace tessera::runtime::detail {

/// With O_DIRECT, offsets, lengths and addresses are multiples of this.
inline constexpr size_t kDirectAlignment = 4096;

/// @param label the operation that failed, e.g. "read".
/// @param code its errno.
/// @throws tessera::Error naming both, the path and the remedy.
[[noreturn]] void fail_on(
    const char* label,
    const std::filesystem::path& path,
    int code);

/// Makes a rename in `folder` durable. Blocks.
/// @param folder empty means the working folder.
void sync_folder(const std::filesystem::path& folder);

/// Removes the last `bytes` of a file, the part of a record that could not be
/// written whole, if possible. Keeps errno.
void cut_appended(int fd, size_t bytes) noexcept;

} // namespace tessera::runtime::detail
