// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ImageRandom` draws the random numbers for one view of one image.

#include <cstdint>
#include <random>

namespace tessera::zoo {

/// A function of its arguments alone, and so the same under any layout of
/// ranks.
class ImageRandom {
 public:
  ImageRandom(uint64_t seed, int64_t epoch, size_t example, int view);

  /// In [0, 1).
  double uniform();
  double between(double low, double high) {
    return low + (high - low) * uniform();
  }
  bool happens(double probability) {
    return uniform() < probability;
  }
  /// From 0 to `count` - 1.
  int64_t below(int64_t count);
  /// Beta(alpha, alpha), for `alpha` from 0.01 to 2.
  double beta(double alpha);

 private:
  std::mt19937_64 engine_;
};

} // namespace tessera::zoo
