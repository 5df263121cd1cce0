// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/rng_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <mutex>
#include <optional>
#include <string>

namespace tessera::engine {

namespace {

at::Tensor get_state(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// That of the current device.
at::Generator generator_of(c10::DeviceType accelerator) {
  return at::globalContext().defaultGenerator(at::Device(accelerator, -1));
}

/// LibTorch may have been built for one that this machine lacks.
std::optional<c10::DeviceType> accelerator_with_device() {
  const auto accelerator = at::getAccelerator();
  return accelerator && at::accelerator::deviceCount() > 0 ? accelerator
                                                           : std::nullopt;
}

std::string name_of(c10::DeviceType accelerator) {
  return c10::DeviceTypeName(accelerator, /*lower_case=*/true);
}

} // namespace

std::string RngState::name() const {
  return "rng";
}

CheckpointState RngState::save_state() const {
  CheckpointState state;
  state.tensors["cpu"] = get_state(at::detail::getDefaultCPUGenerator());
  if (const auto accelerator = accelerator_with_device()) {
    state.tensors[name_of(*accelerator)] =
        get_state(generator_of(*accelerator));
  }
  return state;
}

void RngState::load_state(const CheckpointState& state) {
  set_state(at::detail::getDefaultCPUGenerator(), state.tensors.at("cpu"));
  if (const auto accelerator = accelerator_with_device()) {
    const auto saved = state.tensors.find(name_of(*accelerator));
    if (saved != state.tensors.end()) {
      set_state(generator_of(*accelerator), saved->second);
    }
  }
}

} // namespace tessera::engine
