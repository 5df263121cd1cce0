// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AtomicFile` writes a file that appears complete or not at all.

#include "tessera/runtime/core/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// A file being written next to its final path. Until commit(), nothing is
/// visible under the final name and an existing file is unchanged; a process
/// that dies before leaves only the temporary file `<name>.tmp-<pid>-<n>`
/// behind. Not thread-safe. Every operation blocks.
/// @throws Error from every operation, naming the file and the system's reason.
class AtomicFile {
 public:
  /// Creates the temporary file in the folder of `path`, which must exist. If
  /// `path` is a link, the file that it leads to is written.
  explicit AtomicFile(std::filesystem::path path);

  /// Removes the temporary file unless commit() was called.
  ~AtomicFile();

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Sets the size of the file to `bytes` and allocates the disk space, so that
  /// a full disk is detected before the work.
  void reserve(uint64_t bytes);

  /// Writes at a byte offset; the file grows as needed. What is large goes past
  /// the page cache where the file system can do that: copying a checkpoint
  /// into the cache would take a core from training for seconds.
  void write_at(uint64_t offset, std::span<const std::byte> data);

  /// Makes the content durable and moves it to the final name, replacing an
  /// existing file: fsync, rename, fsync of the folder. Call it once.
  void commit();

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  void write_through_cache(uint64_t offset, std::span<const std::byte> data);
  /// Writes whole blocks, a part of them at a time. Stops where the file system
  /// refuses, and does not try again.
  /// @return bytes written.
  size_t write_directly(uint64_t offset, std::span<const std::byte> data);
  bool opens_directly();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1; // -1 once committed or moved from.
  UniqueFd direct_fd_; ///< of the same file, with O_DIRECT
  bool may_be_direct_ = true;
  std::unique_ptr<std::byte, Free> aligned_; ///< kAlignedBytes, for direct_fd_
};

/// Replaces the whole content of a file, atomically and durably.
/// @throws Error naming the file and the system's reason.
void write_file_atomically(
    const std::filesystem::path& path,
    std::string_view content);

/// Returns the whole content of a regular file.
/// @throws Error naming the file and the system's reason.
std::string read_text_file(const std::filesystem::path& path);

} // namespace tessera::runtime
