// SPDX-License-Identifier: Apache-2.0
#pragma once
// `read_engine_options()` reads the engine's part of a configuration file.

#include "tessera/engine/engine.h"
#include "tessera/runtime/core/config.h"

namespace tessera {

/// Reads the objects `optimizer`, `sharding`, `precision`, `loss_scale`,
/// `memory` and `offload` and the key `update_in_backward` of a configuration;
/// configs/README.md lists the keys. Missing keys keep their defaults.
/// @throws tessera::Error naming file, path, value and what was expected.
EngineOptions read_engine_options(const runtime::ConfigReader& reader);

} // namespace tessera
