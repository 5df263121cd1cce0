// SPDX-License-Identifier: Apache-2.0
#pragma once
// The names in checkpoints of what an optimizer keeps besides its own state.

namespace tessera::engine {

/// The state name of the values of parameters.
inline constexpr const char* kMasterState = "master";
/// The state name of their averages, see OptimizerOptions::ema_decay.
inline constexpr const char* kAverageState = "ema";

} // namespace tessera::engine
