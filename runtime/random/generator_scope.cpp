// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/random/generator_scope.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <mutex>

namespace tessera::runtime {

namespace {

/// A copy that LibTorch's allocator does not make: the state of the CPU's
/// generator, 5056 bytes, is kept during a forward, and is none of what a
/// device is planned for.
at::Tensor outside_of_the_device(const at::Tensor& state) {
  const auto count = static_cast<size_t>(state.numel());
  auto* const bytes = new uint8_t[count];
  std::copy_n(state.const_data_ptr<uint8_t>(), count, bytes);
  return at::from_blob(
      bytes,
      state.sizes(),
      [](void* data) { delete[] static_cast<uint8_t*>(data); },
      at::kByte);
}

} // namespace

GeneratorScope::~GeneratorScope() {
  if (generator_.defined()) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
}

void GeneratorScope::begin(const at::Generator& generator, uint64_t seed) {
  generator_ = generator;
  state_ = outside_of_the_device(generator_.get_state());
  generator_.set_current_seed(seed);
}

} // namespace tessera::runtime
