// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/generation/row_draws.h"

#include "tessera/runtime/core/error.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tessera::zoo {

namespace {

constexpr int64_t kMostDrawn = int64_t{1} << 32;

/// Exponentially distributed, with mean 1.
double exponential_of(
    uint64_t seed,
    uint64_t stream,
    int64_t position,
    int64_t candidate) {
  at::Philox4_32 words(
      seed,
      stream,
      (static_cast<uint64_t>(position) << 32) |
          static_cast<uint64_t>(candidate));
  const uint64_t high = words();
  const uint64_t bits = (high << 32) | words();
  // 53 bits, in (0, 1).
  return -std::log((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53);
}

} // namespace

RowDraws::RowDraws(uint64_t seed, std::vector<uint64_t> streams)
    : seed_(seed), streams_(std::move(streams)) {}

uint64_t RowDraws::stream_of(int64_t prompt, int64_t copy) {
  TESSERA_CHECK(
      prompt >= 0 && prompt < kMostDrawn && copy >= 0 && copy < kMostDrawn,
      "prompt_numbers has {}, of which there is result {}; both must be between 0 and 2^32 - 1",
      prompt,
      copy);
  return static_cast<uint64_t>(prompt) | static_cast<uint64_t>(copy) << 32;
}

at::Tensor RowDraws::draw(
    const at::Tensor& chances,
    int64_t count,
    int64_t position) const {
  const at::Tensor all = chances.contiguous();
  const int64_t candidates = all.size(1);
  TESSERA_CHECK(
      all.size(0) == static_cast<int64_t>(streams_.size()) &&
          count <= candidates && candidates < kMostDrawn,
      "{} of {} tokens cannot be drawn for {} rows; there are {} streams",
      count,
      candidates,
      all.size(0),
      streams_.size());
  at::Tensor drawn = torch::empty({all.size(0), count}, torch::kLong);
  // The first arrivals of Poisson processes with the chances as rates are drawn
  // without replacement.
  using Arrival = std::pair<double, int64_t>;
  std::vector<Arrival> arrivals;
  for (int64_t row = 0; row < all.size(0); ++row) {
    const float* row_weights = all.const_data_ptr<float>() + row * candidates;
    const uint64_t stream = streams_[static_cast<size_t>(row)];
    arrivals.clear();
    int64_t missing = count;
    for (int64_t i = 0; i < candidates; ++i) {
      if (row_weights[i] > 0) {
        arrivals.emplace_back(
            exponential_of(seed_, stream, position, i) /
                static_cast<double>(row_weights[i]),
            i);
        --missing;
      }
    }
    for (int64_t i = 0; i < candidates && missing > 0; ++i) {
      if (!(row_weights[i] > 0)) {
        arrivals.emplace_back(std::numeric_limits<double>::infinity(), i);
        --missing;
      }
    }
    const auto end = arrivals.begin() + count;
    std::partial_sort(arrivals.begin(), end, arrivals.end());
    int64_t* target = drawn.mutable_data_ptr<int64_t>() + row * count;
    std::transform(arrivals.begin(), end, target, [](const Arrival& one) {
      return one.second;
    });
  }
  return drawn;
}

} // namespace tessera::zoo
