// SPDX-License-Identifier: Apache-2.0
#pragma once
// The file of one rank in the folder of the NVMe tier.

#include "tessera/offload/io_calls.h"
#include "tessera/runtime/core/unique_fd.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

/// A file that loses its name as soon as it is open: the system takes its room
/// back however the process ends, and nobody can put another one in its place.
/// Its room is taken from the disk at once, so that a full disk shows early.
class ScratchFile {
 public:
  /// With O_DIRECT, offsets, lengths and addresses are multiples of this.
  static constexpr int64_t kAlignment = 4096;
  static constexpr int64_t rounded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Makes the file. O_DIRECT is used unless the file system refuses it, which
  /// is logged.
  /// @param calls outlives the file.
  /// @throws tessera::Error when the folder does not exist or is not writable.
  ScratchFile(const std::filesystem::path& folder, const IoCalls& calls);

  int fd() const {
    return fd_.get();
  }
  /// As it was called.
  const std::string& path() const {
    return path_;
  }
  int64_t bytes() const {
    return bytes_;
  }
  bool is_direct() const {
    return direct_;
  }

  /// Takes room for `bytes` more. Blocks.
  /// @return where it begins.
  /// @throws tessera::Error when the disk is full, with what is needed and
  /// free.
  int64_t extend(const std::string& name, int64_t bytes);

  /// @throws tessera::Error when the file has become shorter than its room.
  void check_size() const;

  /// Ends O_DIRECT, which is logged.
  void use_buffers(int why);

 private:
  const IoCalls& calls_;
  std::string path_;
  UniqueFd fd_;
  int64_t bytes_ = 0;
  bool direct_ = true;
};

} // namespace tessera
