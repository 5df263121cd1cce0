// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_fields()` reads an options struct from a configuration.

#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/option_fields.h"

namespace tessera::runtime {

void read_list(const ConfigReader& reader, const OptionList& list);

/// Keys that are absent leave their fields as they are.
/// @throws tessera::Error naming file, path, value and what was expected.
template <typename Options>
void read_fields(const ConfigReader& reader, Options& options) {
  read_list(reader, list_of(options));
}

} // namespace tessera::runtime
