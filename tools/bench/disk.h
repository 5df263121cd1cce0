// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bandwidth of the disk behind a folder.

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::tools {

struct DiskOptions {
  std::filesystem::path folder = ".";
  uint64_t file_bytes = uint64_t{1} << 30; ///< a multiple of 4 MiB is used
  int threads = 4; ///< requests under way
  double seconds = 6; ///< for writing and reading together
};

struct DiskBandwidth {
  bool direct = false; ///< O_DIRECT: past the page cache
  std::string note; ///< why not, else empty
  uint64_t file_bytes = 0; ///< written and read
  double write = 0; ///< bytes per second, until the data is on the disk
  double read = 0;
};

/// Writes a file in the folder, reads it back and removes it; nothing is left
/// when the process dies. Blocks.
/// @throws tessera::Error naming the folder and the system's reason.
DiskBandwidth measure_disk(const DiskOptions& options);

} // namespace tessera::tools
