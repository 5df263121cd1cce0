// SPDX-License-Identifier: Apache-2.0
#pragma once
// measure_disk() measures the bandwidth of the disk that holds a folder.

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::tools {

struct DiskOptions {
  std::filesystem::path folder = ".";
  uint64_t file_bytes = uint64_t{1} << 30; ///< used as a multiple of 4 MiB
  int threads = 4; ///< requests in flight
  double seconds = 6; ///< for writing and reading in total
};

struct DiskBandwidth {
  bool direct = false; ///< O_DIRECT: bypasses the page cache
  std::string note; ///< why not; else empty
  uint64_t file_bytes = 0; ///< written and read
  double write = 0; ///< bytes per second, until the data is on the disk
  double read = 0;
};

/// Writes a file in the folder, reads it back and removes it; nothing is left
/// behind if the process dies. Blocks.
/// @throws tessera::Error naming the folder and the system's reason.
DiskBandwidth measure_disk(const DiskOptions& options);

} // namespace tessera::tools
