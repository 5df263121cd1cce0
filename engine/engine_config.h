// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of a configuration file that is about the engine.

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/config.h"

namespace tessera {

/// Reads the objects `optimizer`, `sharding`, `precision`, `loss_scale` and
/// `memory` of a configuration; configs/README.md lists their keys. What is not
/// given keeps its default.
/// @throws tessera::Error naming file, path, value and what was expected.
EngineOptions read_engine_options(const ConfigReader& reader);

} // namespace tessera
