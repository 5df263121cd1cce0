// SPDX-License-Identifier: Apache-2.0
#pragma once
// `MappedFile` is a read-only memory map of a whole file.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::runtime {

/// Bytes are read from disk on access. The file must not be truncated while it
/// is open. Move-only; thread-safe.
class MappedFile {
 public:
  MappedFile() = default;
  /// @param label kind of file, for errors, e.g. "safetensors file".
  /// @throws Error naming the path if it cannot be read or is no regular file.
  MappedFile(const std::filesystem::path& path, const std::string& label);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  /// At the same address as long as the map lives, moves included.
  std::span<const std::byte> bytes() const {
    return bytes_;
  }

 private:
  std::span<const std::byte> bytes_;
};

} // namespace tessera::runtime
