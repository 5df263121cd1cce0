// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/profile/operator_observer.h"

#include "tessera/runtime/core/error.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

namespace tessera::runtime {

namespace {

/// LibTorch calls functions without state.
struct Observed {
  std::vector<OperatorObserver*> observers;
  std::thread::id thread;
  at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE;
};

Observed& observed() {
  static Observed state;
  return state;
}

/// What is local to the observing thread is taken over by autograd's threads,
/// and by those of Gloo, whose operators run beside all others.
bool is_observed() {
  return std::this_thread::get_id() == observed().thread ||
         torch::autograd::get_current_graph_task_id() >= 0;
}

std::unique_ptr<at::ObserverContext> observe_begin(
    const at::RecordFunction& call) {
  if (!is_observed()) {
    return nullptr;
  }
  for (OperatorObserver* observer : observed().observers) {
    observer->on_begin(call);
  }
  return nullptr;
}

void observe_end(
    const at::RecordFunction& call,
    at::ObserverContext* /*none*/) {
  if (!is_observed()) {
    return;
  }
  for (OperatorObserver* observer : observed().observers) {
    observer->on_end(call);
  }
}

} // namespace

OperatorObserver::OperatorObserver() {
  Observed& state = observed();
  if (state.observers.empty()) {
    state.thread = std::this_thread::get_id();
    // Autograd's threads take over what is local to this one.
    state.handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(observe_begin, observe_end)
            .needsInputs(true)
            .scopes(
                {at::RecordScope::FUNCTION,
                 at::RecordScope::BACKWARD_FUNCTION}));
  }
  TESSERA_CHECK(
      state.thread == std::this_thread::get_id(),
      "operators are observed on two threads at once; profile one engine of a process at a time.");
  state.observers.push_back(this);
}

OperatorObserver::~OperatorObserver() {
  Observed& state = observed();
  std::erase(state.observers, this);
  if (state.observers.empty()) {
    at::removeCallback(state.handle);
  }
}

} // namespace tessera::runtime
