// SPDX-License-Identifier: Apache-2.0
#include "size_option.h"

#include "tessera/runtime/core/config_values.h"
#include "tessera/runtime/core/format.h"

#include <algorithm>
#include <string>

namespace tessera::tools {

CLI::Validator size_in_bytes() {
  return {
      [](std::string& text) -> std::string {
        const bool is_number =
            !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
              return c >= '0' && c <= '9';
            });
        if (is_number) {
          return "";
        }
        if (const auto bytes = runtime::detail::bytes_in(text)) {
          text = std::to_string(*bytes);
          return "";
        }
        return formatted(
            "'{}' is not a size; write a number of bytes, or e.g. 11GB (10^9 bytes each) or 11GiB (2^30)",
            text);
      },
      "SIZE"};
}

} // namespace tessera::tools
