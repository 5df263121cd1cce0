// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/recompute_scope.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>
#include <vector>

namespace tessera::sharding {

namespace {

struct ThreadState {
  int forwards = 0;
  int recomputations = 0;
  int outer_backward = -1; ///< the backward around the outermost recomputation
  /// called at the end of the outermost scope
  std::vector<std::function<void()>> waiting;
};

ThreadState& state() {
  // Autograd runs a nested backward on the calling thread.
  thread_local ThreadState state;
  return state;
}

} // namespace

CheckpointedForward::CheckpointedForward() {
  ++state().forwards;
}

CheckpointedForward::~CheckpointedForward() {
  --state().forwards;
}

bool in_checkpointed_forward() {
  return state().forwards > 0;
}

RecomputeScope::RecomputeScope() {
  if (state().recomputations++ == 0) {
    state().outer_backward = torch::autograd::get_current_graph_task_id();
  }
}

RecomputeScope::~RecomputeScope() {
  if (!finished_ && --state().recomputations == 0) {
    state().waiting.clear();
  }
}

void RecomputeScope::finish() {
  finished_ = true;
  if (--state().recomputations == 0) {
    for (auto& callback : std::exchange(state().waiting, {})) {
      call_at_backward_end(std::move(callback));
    }
  }
}

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

bool in_recomputation() {
  return state().recomputations > 0;
}

int current_backward() {
  return state().recomputations > 0
             ? state().outer_backward
             : torch::autograd::get_current_graph_task_id();
}

void call_at_backward_end(std::function<void()> callback) {
  if (state().recomputations > 0) {
    state().waiting.push_back(std::move(callback));
  } else {
    torch::autograd::Engine::get_default_engine().queue_callback(
        std::move(callback));
  }
}

} // namespace tessera::sharding
