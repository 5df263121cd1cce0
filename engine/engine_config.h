// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_engine_options()` reads the engine's part of a configuration file.
// Beside it the list of its fields.

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/config.h"

namespace tessera {

/// All of EngineOptions but functions (a user's optimizer, predicates over
/// modules) and EngineOptions::parallel.
void visit_fields(runtime::OptionFields& fields, EngineOptions& options);

/// Reads what visit_fields() lists; configs/README.md has the keys. Missing
/// keys keep their defaults.
/// @throws tessera::Error naming file, path, value and what was expected.
EngineOptions read_engine_options(const runtime::ConfigReader& reader);

} // namespace tessera
