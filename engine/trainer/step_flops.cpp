// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/trainer/step_flops.h"

#include <utility>

namespace tessera::engine {

void StepFlops::begin(int64_t tokens) {
  if (tokens > 0 ? counted_.count(tokens) == 0 : counted_.empty()) {
    counter_.emplace();
  }
}

void StepFlops::end(int64_t tokens) {
  if (counter_) {
    counted_[tokens] = counter_->flops();
    counter_.reset();
  }
  // Exact, or of the first batch.
  const auto exact = counted_.find(tokens);
  const auto& [of_tokens, flops] =
      exact != counted_.end() ? *exact : *counted_.begin();
  sum_ += of_tokens == tokens || of_tokens == 0
              ? flops
              : flops * static_cast<double>(tokens) /
                    static_cast<double>(of_tokens);
}

double StepFlops::take() {
  return std::exchange(sum_, 0);
}

} // namespace tessera::engine
