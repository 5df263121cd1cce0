// SPDX-License-Identifier: Apache-2.0
#pragma once
// `to_bytes()` and `to_text()` convert between text and the byte vectors of
// c10d::Store.

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::runtime {

inline std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

inline std::string to_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

} // namespace tessera::runtime
