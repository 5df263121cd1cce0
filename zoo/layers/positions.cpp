// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/positions.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <cmath>

namespace tessera::zoo {

at::Tensor positions_without_padding(const at::Tensor& attention_mask) {
  const at::Tensor counts = attention_mask.ne(0).to(at::kLong);
  return counts.cumsum(1) * counts - 1;
}

at::Tensor sinusoid_table(
    int64_t positions,
    int64_t features,
    SinusoidLayout layout,
    double base) {
  TESSERA_CHECK(
      features >= 2 && features % 2 == 0,
      "sinusoid_table: features is {}; it must be even",
      features);
  const at::Tensor frequencies = torch::pow(
      base, -torch::arange(0, features, 2, torch::kDouble) / features);
  // The positions fill a whole table at once: lazy() defers what is made with
  // all its elements, and not arange().
  const at::Tensor angles =
      (torch::ones({positions, features / 2}, torch::kDouble).cumsum(0) - 1) *
      frequencies;
  const at::Tensor sines = angles.sin().to(torch::kFloat);
  const at::Tensor cosines = angles.cos().to(torch::kFloat);
  return layout == SinusoidLayout::kPairs
             ? torch::stack({sines, cosines}, -1).flatten(1)
             : torch::cat({sines, cosines}, 1);
}

at::Tensor relative_buckets(
    int64_t queries,
    int64_t keys,
    const RelativeBuckets& options,
    const at::Device& device,
    int64_t first) {
  const auto index_options = torch::dtype(torch::kInt64).device(device);
  return relative_buckets(
      torch::arange(keys, index_options).unsqueeze(0) -
          torch::arange(first, first + queries, index_options).unsqueeze(1),
      options);
}

at::Tensor relative_buckets(
    const at::Tensor& relative,
    const RelativeBuckets& options) {
  int64_t buckets = options.buckets;
  at::Tensor begin = torch::zeros_like(relative);
  at::Tensor distance;
  if (options.bidirectional) {
    buckets /= 2;
    begin = relative.gt(0).to(torch::kInt64) * buckets;
    distance = relative.abs();
  } else {
    distance = (-relative).clamp_min(0);
  }
  const int64_t exact = buckets / 2;
  const double range = std::log(
      static_cast<double>(options.max_distance) / static_cast<double>(exact));
  const at::Tensor far =
      exact + (torch::log(distance.to(torch::kFloat) / exact) / range *
               (buckets - exact))
                  .clamp_min(0)
                  .to(torch::kInt64);
  return begin +
         torch::where(distance.lt(exact), distance, far.clamp_max(buckets - 1));
}

at::Tensor segment_buckets(
    const at::Tensor& of_queries,
    const at::Tensor& of_keys,
    int64_t segments) {
  return of_queries.unsqueeze(2) * segments + of_keys.unsqueeze(1);
}

} // namespace tessera::zoo
