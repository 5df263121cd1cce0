// SPDX-License-Identifier: Apache-2.0
#pragma once
// `checksum_of()` computes the checksum by which damaged files are detected.

#include <cstddef>
#include <span>
#include <string>

namespace tessera::runtime {

/// "xxh3:" and the 64-bit XXH3 of the bytes as 16 hexadecimal digits.
std::string checksum_of(std::span<const std::byte> data);

} // namespace tessera::runtime
