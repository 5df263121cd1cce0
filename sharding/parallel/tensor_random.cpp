// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/tensor_random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstdint>
#include <mutex>

namespace tessera {

namespace {

/// splitmix64's finaliser: every bit of the result depends on every bit of x.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// A number that depends on the generator's state, which moves on.
uint64_t draw(at::Generator& generator) {
  if (generator.device().is_cpu()) {
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  // A counter-based generator: seed and offset are all of its state, and a step
  // of four is the smallest.
  constexpr uint64_t kStep = 4;
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kStep);
  return mixed(generator.current_seed()) + offset;
}

} // namespace

TensorRandomScope::TensorRandomScope(
    const Communicator& group,
    at::Device device) {
  if (group.size() == 1) {
    return;
  }
  generator_ = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator_.mutex());
  const uint64_t drawn = draw(generator_);
  state_ = generator_.get_state();
  generator_.set_current_seed(
      mixed(mixed(drawn) + static_cast<uint64_t>(group.rank())));
}

TensorRandomScope::~TensorRandomScope() {
  if (generator_.defined()) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
}

} // namespace tessera
