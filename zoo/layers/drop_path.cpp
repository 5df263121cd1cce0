// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/layers/drop_path.h"

#include <torch/types.h>

#include <algorithm>

namespace tessera::zoo {

at::Tensor drop_path(const at::Tensor& x, double probability, bool train) {
  if (!train || probability == 0) {
    return x;
  }
  const double kept = 1 - probability;
  std::vector<int64_t> rows(static_cast<size_t>(x.dim()), 1);
  rows[0] = x.size(0);
  const at::Tensor keeps = at::floor(at::rand(rows, x.options()) + kept);
  return x / kept * keeps;
}

std::vector<double> drop_path_schedule(double last, int64_t layers) {
  std::vector<double> schedule;
  for (int64_t i = 0; i < layers; ++i) {
    schedule.push_back(
        last * static_cast<double>(i) /
        static_cast<double>(std::max<int64_t>(layers - 1, 1)));
  }
  return schedule;
}

} // namespace tessera::zoo
