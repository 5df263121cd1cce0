// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/tensor_random.h"

#include "tessera/runtime/random/mixed_bits.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstdint>
#include <mutex>

namespace tessera::sharding {

namespace {

/// Draws a number that depends on the generator's state, and advances the
/// state.
uint64_t draw(at::Generator& generator) {
  if (generator.device().is_cpu()) {
    return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
  }
  // A counter-based generator: its state is seed and offset, and the smallest
  // step is four.
  constexpr uint64_t kStep = 4;
  const uint64_t offset = generator.get_offset();
  generator.set_offset(offset + kStep);
  return runtime::mix_bits(generator.current_seed()) + offset;
}

} // namespace

TensorRandomScope::TensorRandomScope(
    const Communicator& group,
    at::Device device) {
  if (group.size() == 1) {
    return;
  }
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  const uint64_t drawn = draw(generator);
  generator_.begin(
      generator,
      runtime::mix_bits(
          runtime::mix_bits(drawn) + static_cast<uint64_t>(group.rank())));
}

} // namespace tessera::sharding
