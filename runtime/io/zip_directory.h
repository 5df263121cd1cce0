// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ZipDirectory` lists the entries of a ZIP archive. Those that are stored as
// they are, as torch.save stores tensors, are spans of it, not copies.
// Format: PKWARE's APPNOTE 6.3, ZIP64 included; no compression, no encryption,
// one disk.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace tessera::runtime {

struct ZipEntry {
  std::span<const std::byte> data; ///< lies in the archive; as it is stored
  bool is_plain = true; ///< neither compressed nor encrypted
  uint32_t crc = 0; ///< as the archive says; not checked
};

/// Whether the bytes begin as an archive does.
bool is_zip(std::span<const std::byte> bytes);

/// Checks that every entry lies in the archive. The bytes must outlive it.
class ZipDirectory {
 public:
  /// @param source names the archive in errors.
  /// @throws Error when the archive is truncated or malformed.
  ZipDirectory(std::span<const std::byte> bytes, std::string_view source);

  const std::map<std::string, ZipEntry, std::less<>>& entries() const {
    return entries_;
  }
  bool contains(std::string_view name) const {
    return entries_.contains(name);
  }
  /// Null if there is none of that name.
  /// @throws Error if it is compressed or encrypted.
  const ZipEntry* find(std::string_view name) const;

 private:
  std::string source_;
  std::map<std::string, ZipEntry, std::less<>> entries_;
};

/// The checksum of ZIP entries (CRC-32 of IEEE 802.3).
uint32_t zip_crc(std::span<const std::byte> bytes);

} // namespace tessera::runtime
