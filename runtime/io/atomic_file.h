// SPDX-License-Identifier: Apache-2.0
#pragma once
// `AtomicFile` writes a file that appears complete or not at all.

#include <cstddef>
#include <cstdint>
#include <filesystem>
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
  /// Creates the temporary file in the folder of `path`, which must exist.
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

  /// Writes at a byte offset; the file grows as needed.
  void write_at(uint64_t offset, std::span<const std::byte> data);

  /// Makes the content durable and moves it to the final name, replacing an
  /// existing file: fsync, rename, fsync of the folder. Call it once.
  void commit();

  const std::filesystem::path& path() const {
    return path_;
  }

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int fd_ = -1; // -1 once committed or moved from.
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
