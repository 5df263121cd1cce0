// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/rng_state.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

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

at::Generator cuda_generator() {
  return at::globalContext().defaultGenerator(at::Device(at::kCUDA, -1));
}

} // namespace

std::string RngState::name() const {
  return "rng";
}

CheckpointState RngState::save_state() const {
  CheckpointState state;
  state.tensors["cpu"] = get_state(at::detail::getDefaultCPUGenerator());
  if (at::hasCUDA()) {
    state.tensors["cuda"] = get_state(cuda_generator());
  }
  return state;
}

void RngState::load_state(const CheckpointState& state) {
  set_state(at::detail::getDefaultCPUGenerator(), state.tensors.at("cpu"));
  const auto cuda = state.tensors.find("cuda");
  if (cuda != state.tensors.end() && at::hasCUDA()) {
    set_state(cuda_generator(), cuda->second);
  }
}

} // namespace tessera::engine
