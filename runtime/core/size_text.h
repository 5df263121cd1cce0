// SPDX-License-Identifier: Apache-2.0
#pragma once
// Byte counts and counts of things as text, for tables and messages.

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::runtime {

/// "1.50 MiB"; below 0.1 MiB, where digits would be lost, "80.00 KiB".
std::string size_text(int64_t bytes);

/// "1 rank", "2 ranks".
std::string count_text(int64_t count, std::string_view noun);

} // namespace tessera::runtime
