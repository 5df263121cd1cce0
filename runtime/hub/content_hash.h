// SPDX-License-Identifier: Apache-2.0
#pragma once
// `content_hash_of()` computes the hash by which the Hub names a file's
// content.

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::runtime {

enum class ContentHash {
  kSha256, ///< of files in large file storage
  kGitBlob, ///< SHA-1 of all others, as Git's object names
};

/// As lower-case hexadecimal digits. Reads the file; blocks.
/// @throws tessera::Error naming the file.
std::string content_hash_of(
    const std::filesystem::path& file,
    ContentHash kind);

} // namespace tessera::runtime
