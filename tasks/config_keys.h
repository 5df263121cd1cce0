// SPDX-License-Identifier: Apache-2.0
#pragma once
// `config_schema()` and `config_rows()` describe the configurations of
// `tessera train`.

#include "tessera/runtime/core/option_schema.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace tessera::tasks {

/// JSON Schema, 2020-12, of a file for any task. A file that extends another
/// requires no key but in the elements of arrays; others all that there have to
/// be, although the command line may set them, too.
nlohmann::ordered_json config_schema();

/// The same for the value of a key, "optimizer" or "optimizer.lr"; nothing
/// beyond elements is required.
/// @throws tessera::Error if there is no such key.
nlohmann::ordered_json config_schema(const std::string& section);

/// The keys of all tasks. What is not in all of them names its tasks.
std::vector<runtime::OptionRow> config_rows();

} // namespace tessera::tasks
