// SPDX-License-Identifier: Apache-2.0
#pragma once
// `config_schema()` and `config_rows()` describe the configurations of
// `tessera train`.

#include "tessera/runtime/core/option_schema.h"

#include <nlohmann/json_fwd.hpp>

#include <vector>

namespace tessera::zoo {

/// JSON Schema, 2020-12, of a file for any task. No key is required but in the
/// elements of arrays: `extends` and the command line may have it.
nlohmann::ordered_json config_schema();

/// The keys of all tasks. What is not in all of them names its tasks.
std::vector<runtime::OptionRow> config_rows();

} // namespace tessera::zoo
