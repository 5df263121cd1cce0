// SPDX-License-Identifier: Apache-2.0
#pragma once
// `check_same_states()` finds states that a checkpoint has once for all ranks,
// but that are not the same on all of them.

#include "tessera/engine/checkpoint/checkpointable.h"
#include "tessera/runtime/comm/communicator.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace tessera::engine {

/// The state of a Checkpointable on this rank.
struct NamedState {
  std::string name;
  bool is_per_rank = false;
  CheckpointState state;
};

/// Calls save_state() of each, also on ranks that do not write it.
/// @throws tessera::Error if two states have the same name.
std::vector<NamedState> take_states(const std::vector<Checkpointable*>& states);

/// Compares what rank 0 writes and all ranks load. A rank may lack a state that
/// is rank 0's alone. Collective; blocks.
/// @param job all ranks of the job.
/// @param engine_values of the engine, such as its learning rate.
/// @throws tessera::Error on all ranks, naming the state, the first rank that
///   has another one, and the first value that differs.
void check_same_states(
    Communicator& job,
    const std::vector<NamedState>& states,
    const nlohmann::json& engine_values,
    const WaitCheck& check = {});

} // namespace tessera::engine
