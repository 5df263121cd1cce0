// SPDX-License-Identifier: Apache-2.0
#pragma once
// `data_identity()` tells whether a resumed run has the data of its checkpoint.

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <vector>

namespace tessera::zoo {

/// {"path", "bytes", "checksum"} of data files; a folder stands for all files
/// in it and its folders. The checksum covers names, sizes and contents; of
/// large files, blocks that are spread evenly, 64 MiB in all; of more than 1024
/// files, the contents of as many. Blocks on the disk.
/// @throws tessera::Error if a file cannot be read.
nlohmann::json data_identity(const std::vector<std::filesystem::path>& paths);

} // namespace tessera::zoo
