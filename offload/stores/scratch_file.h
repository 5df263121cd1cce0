// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ScratchFile` is the file of one rank in the folder of the NVMe tier.

#include "tessera/offload/stores/io_calls.h"
#include "tessera/runtime/core/unique_fd.h"
#include "tessera/runtime/io/posix_file.h"

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::offload {

/// A file that is unlinked as soon as it is open: the system frees its space
/// however the process ends, and no other file can take its place. Its space is
/// reserved on the disk at once, so that a full disk is found early.
class ScratchFile {
 public:
  static constexpr int64_t kAlignment = runtime::detail::kDirectAlignment;
  static constexpr int64_t rounded(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// Creates the file. O_DIRECT is used unless the file system refuses it,
  /// which is logged.
  /// @param calls must outlive the file.
  /// @throws tessera::Error if the folder does not exist or is not writable.
  ScratchFile(const std::filesystem::path& folder, const IoCalls& calls);

  int fd() const {
    return fd_.get();
  }
  /// Its name before it was unlinked.
  const std::string& path() const {
    return path_;
  }
  int64_t bytes() const {
    return bytes_;
  }
  bool is_direct() const {
    return direct_;
  }

  /// Reserves `bytes` more. Blocks.
  /// @return the offset at which they begin.
  /// @throws tessera::Error if the disk is full, with the bytes needed and
  ///   free.
  int64_t extend(const std::string& name, int64_t bytes);

  /// @throws tessera::Error if the file has become shorter than bytes().
  void check_size() const;

  /// Switches O_DIRECT off, which is logged.
  void use_buffers(int why);

 private:
  const IoCalls& calls_;
  std::string path_;
  runtime::UniqueFd fd_;
  int64_t bytes_ = 0;
  bool direct_ = true;
};

} // namespace tessera::offload
