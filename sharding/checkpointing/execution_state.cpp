// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/checkpointing/execution_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace tessera::sharding {

namespace {

// Generators are shared by all threads and must be locked.
at::Tensor state_of(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

} // namespace

void RandomState::add(c10::Device device) {
  const bool known =
      std::any_of(states_.begin(), states_.end(), [&](const auto& state) {
        return state.first == device;
      });
  if (!known) {
    states_.emplace_back(device, state_of(device));
  }
}

RandomState RandomState::take(
    const std::vector<at::Tensor>& tensors,
    const std::vector<c10::Device>& devices) {
  RandomState random;
  random.add(at::kCPU);
  const auto add = [&](c10::Device device) {
    if (at::isAccelerator(device.type())) {
      random.add(device);
    }
  };
  for (const at::Tensor& tensor : tensors) {
    add(tensor.device());
  }
  std::for_each(devices.begin(), devices.end(), add);
  return random;
}

RandomState RandomState::now() const {
  RandomState random;
  for (const auto& state : states_) {
    random.add(state.first);
  }
  return random;
}

void RandomState::put_back() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

AutocastState AutocastState::take() {
  AutocastState state;
  for (size_t i = 0; i < kDevices.size(); ++i) {
    state.devices_[i] = {
        at::autocast::is_autocast_enabled(kDevices[i]),
        at::autocast::get_autocast_dtype(kDevices[i])};
  }
  state.cache_ = at::autocast::is_autocast_cache_enabled();
  return state;
}

void AutocastState::put_back(bool cache) const {
  for (size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], devices_[i].enabled);
    at::autocast::set_autocast_dtype(kDevices[i], devices_[i].dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache);
}

BufferScope::BufferScope(std::vector<at::Tensor> buffers)
    : buffers_(std::move(buffers)) {
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& buffer : buffers_) {
    values_.push_back(buffer.clone());
  }
}

BufferScope::~BufferScope() {
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    // Backward may have saved them, and would take a change for a mistake.
    buffers_[i].variable_data().copy_(values_[i]);
  }
}

ExecutionStateScope::ExecutionStateScope(
    const RandomState& random,
    const AutocastState& autocast)
    : random_before_(random.now()), autocast_before_(AutocastState::take()) {
  random.put_back();
  autocast.put_back(/*cache=*/false);
}

ExecutionStateScope::~ExecutionStateScope() {
  random_before_.put_back();
  autocast_before_.put_back(autocast_before_.cache());
}

NoAutocastCache::NoAutocastCache()
    : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

NoAutocastCache::~NoAutocastCache() {
  at::autocast::set_autocast_cache_enabled(before_);
}

} // namespace tessera::sharding
