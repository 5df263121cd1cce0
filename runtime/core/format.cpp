// SPDX-License-Identifier: Apache-2.0
// fmt's headers come with LibTorch; its code is compiled here.
#define FMT_HEADER_ONLY
#include "tessera/runtime/core/format.h"

#include <fmt/format.h>

namespace tessera::detail {

std::string write_format(fmt::string_view format, fmt::format_args arguments) {
  return fmt::vformat(format, arguments);
}

} // namespace tessera::detail
