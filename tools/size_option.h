// SPDX-License-Identifier: Apache-2.0
#pragma once
// `size_in_bytes()` reads options that are sizes of memory or files.

#include <CLI/CLI.hpp>

namespace tessera::tools {

/// A transform of an option of type integer: it takes a number of bytes, or a
/// size such as 1.5GB (10^9 bytes each) or 1.5GiB (2^30), as the keys of
/// configurations that end in `_bytes` do.
CLI::Validator size_in_bytes();

} // namespace tessera::tools
