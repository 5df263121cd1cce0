// SPDX-License-Identifier: Apache-2.0
#pragma once
// position_limit() is the length of the sequences that a model takes.

#include "tessera/zoo/models/model.h"

#include <cstdint>
#include <optional>

namespace tessera::zoo {

/// The longest sequence; nullopt if positions are not in a table.
std::optional<int64_t> position_limit(const Model& model);

/// @throws tessera::Error naming model.max_length if it is above
///     position_limit().
void check_positions(const Model& model, int64_t max_length);

} // namespace tessera::zoo
