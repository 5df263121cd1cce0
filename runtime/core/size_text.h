// SPDX-License-Identifier: Apache-2.0
#pragma once
// `size_text()` formats byte counts for tables and messages.

#include <cstdint>
#include <string>

namespace tessera::runtime {

/// "1.50 MiB"; below 0.1 MiB, where digits would be lost, "80.00 KiB".
std::string size_text(int64_t bytes);

} // namespace tessera::runtime
