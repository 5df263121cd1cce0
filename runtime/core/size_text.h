// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sizes for tables and messages.

#include <cstdint>
#include <string>

namespace tessera {

/// "1.50 MiB"; below a tenth of one, where digits would be lost, "80.00 KiB".
std::string size_text(int64_t bytes);

} // namespace tessera
