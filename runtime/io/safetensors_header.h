// SPDX-License-Identifier: Apache-2.0
#pragma once
// `parse_safetensors_header()` and the limits of the format, shared by the
// reader and the writer of safetensors.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/runtime/io/safetensors.h"

namespace tessera::runtime::detail {

/// Size in bytes of the header length at the start of the file.
inline constexpr size_t kSafetensorsPrefixBytes = 8;

/// Longer headers are rejected, as in the reference implementation.
inline constexpr uint64_t kSafetensorsMaxHeaderBytes = 100'000'000;

/// The only key of the header that is not a tensor.
inline constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";

/// The end of every error about a malformed file.
inline constexpr std::string_view kSafetensorsRemedy =
    "; the file is damaged or was not written completely: download or "
    "write it again";

/// Bytes of a tensor, or no value if they do not fit in an int64, so that
/// element counts, strides and byte offsets are safe as signed numbers
/// everywhere. The other sizes must fit even if one of them is zero. Sizes must
/// not be negative.
inline std::optional<uint64_t> safetensors_bytes(
    SafetensorsDtype dtype,
    std::span<const int64_t> shape) {
  auto bytes = static_cast<int64_t>(size_of(dtype));
  bool empty = false;
  for (const int64_t size : shape) {
    empty = empty || size == 0;
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

/// A parsed header, checked against its data.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries; ///< In the order of their data.
  std::map<std::string, std::string> metadata;
};

/// Parses a header and checks that its tensors tile `data` exactly.
/// @param path names the file in errors.
/// @throws Error when anything is malformed.
SafetensorsHeader parse_safetensors_header(
    const std::filesystem::path& path,
    std::string_view text,
    std::span<const std::byte> data);

} // namespace tessera::runtime::detail
