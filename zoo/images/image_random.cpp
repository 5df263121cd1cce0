// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/images/image_random.h"

#include "tessera/runtime/core/format.h"
#include "tessera/runtime/random/counter_random.h"

#include <algorithm>
#include <cmath>

namespace tessera::zoo {

ImageRandom::ImageRandom(uint64_t seed, int64_t epoch, size_t example, int view)
    : engine_(stream_of(formatted(
          "image, seed {}, epoch {}, example {}, view {}",
          seed,
          epoch,
          example,
          view))) {}

// By hand: the distributions of standard libraries differ.
double ImageRandom::uniform() {
  return static_cast<double>(engine_() >> 11U) * 0x1p-53;
}

int64_t ImageRandom::below(int64_t count) {
  return std::min(
      static_cast<int64_t>(uniform() * static_cast<double>(count)), count - 1);
}

// Joehnk's algorithm, with logarithms: powers of small numbers vanish.
double ImageRandom::beta(double alpha) {
  while (true) {
    const double x = std::log(1 - uniform()) / alpha;
    const double y = std::log(1 - uniform()) / alpha;
    const double most = std::max(x, y);
    if (most + std::log(std::exp(x - most) + std::exp(y - most)) <= 0) {
      return 1 / (1 + std::exp(y - x));
    }
  }
}

} // namespace tessera::zoo
