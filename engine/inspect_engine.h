// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables of a wrapped model's parameters, gradients and hidden states. Print
// them with format_summary() on one rank.

#include "tessera/engine/engine.h"
#include "tessera/sharding/inspect.h"

#include <string>
#include <vector>

namespace tessera {

/// Of every parameter whose name `pattern` (a regular expression) matches
/// whole, and of its gradient as Engine::grad() gives it; after step() there is
/// none. From the shards, without gathering. Collective.
std::vector<TensorSummary> inspect_model(
    Engine& engine,
    const std::string& pattern = ".*");

/// Of what record_tensor() was given, over all ranks; gradients without the
/// loss scale. Collective; every rank has recorded as much.
std::vector<TensorSummary> inspect_tensor(
    Engine& engine,
    const TensorRecorder& recorder);

} // namespace tessera
