// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/lazy/numbered_init.h"

#include "tessera/runtime/random/mixed_bits.h"
#include "tessera/sharding/lazy/lazy_recorder.h"

#include <ATen/Context.h>

#include <mutex>
#include <utility>

namespace tessera::sharding {

NumberedInit::NumberedInit(int64_t number) {
  const auto local = runtime::mix_bits(static_cast<uint64_t>(number) + 1);
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  {
    const std::lock_guard lock(generator.mutex());
    generator_.begin(
        generator, runtime::mix_bits(generator.current_seed() ^ local));
  }
  if (LazyRecording* recording = lazy_recording()) {
    // Leaves room for 2^24 random operators per number.
    next_random_ = std::exchange(recording->next_random, local << 24);
  }
}

NumberedInit::~NumberedInit() {
  if (LazyRecording* recording = lazy_recording()) {
    recording->next_random = next_random_;
  }
}

} // namespace tessera::sharding
