// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/random/generator_scope.h"

#include <mutex>

namespace tessera::runtime {

GeneratorScope::~GeneratorScope() {
  if (generator_.defined()) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
}

void GeneratorScope::begin(const at::Generator& generator, uint64_t seed) {
  generator_ = generator;
  state_ = generator_.get_state();
  generator_.set_current_seed(seed);
}

} // namespace tessera::runtime
