// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/gradient_norm.h"

#include "tessera/runtime/kernels/power_sum.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <functional>
#include <vector>

namespace tessera {

namespace {

/// Calls `visit(run, factor)` for this rank's part of every gradient: [n], and
/// what it is to be multiplied with.
void for_each_run(
    const Pager& pager,
    const std::function<void(const at::Tensor&, double)>& visit) {
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const GradientBucket* bucket = pager.bucket(g);
    if (bucket == nullptr) {
      continue;
    }
    for (const FlatRun& run : bucket->own_runs()) {
      if (bucket->has_gradient(run.parameter)) {
        visit(
            bucket->shard().narrow(0, run.shard_offset, run.numel),
            bucket->factor());
      }
    }
  }
}

/// power_sums() of the runs of for_each_run(), and their factors.
std::vector<double> sums_of_runs(
    const Pager& pager,
    double p,
    std::vector<double>& factors) {
  std::vector<at::Tensor> runs;
  for_each_run(pager, [&](const at::Tensor& run, double factor) {
    runs.push_back(run);
    factors.push_back(factor);
  });
  return power_sums(runs, p);
}

} // namespace

double gradient_norm(Pager& pager, double p) {
  const bool largest = std::isinf(p);
  std::vector<double> factors;
  const std::vector<double> sums = sums_of_runs(pager, p, factors);
  double mine = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!largest) {
      mine += sums[i] * std::pow(factors[i], p);
    } else if (!std::isnan(mine) && !(sums[i] * factors[i] <= mine)) {
      mine = sums[i] * factors[i]; // NaN too
    }
  }
  const at::Tensor total = at::tensor({mine}, at::kDouble);
  if (largest) {
    // A maximum over the ranks may lose a NaN.
    const at::Tensor bad =
        at::tensor({std::isnan(mine) ? 1.0 : 0.0}, at::kDouble);
    pager.max_over_ranks(bad);
    pager.max_over_ranks(total);
    return bad.item<double>() > 0 ? std::nan("") : total.item<double>();
  }
  pager.sum_over_shards(total);
  // abs: the NaN of inf - inf has a sign, which would be printed.
  return std::abs(std::pow(total.item<double>(), 1 / p));
}

bool gradients_are_finite(Pager& pager) {
  std::vector<double> factors;
  double mine = 0;
  for (const double sum : sums_of_runs(pager, 2, factors)) {
    mine += std::isfinite(sum) ? 0 : 1;
  }
  const at::Tensor bad = at::tensor({mine}, at::kDouble);
  pager.sum_over_ranks(bad);
  return bad.item<double>() == 0;
}

void clamp_gradients(Pager& pager, double limit) {
  const c10::NoGradGuard no_grad;
  for_each_run(pager, [limit](const at::Tensor& run, double factor) {
    const double bound = limit / factor;
    run.clamp_(-bound, bound);
  });
}

} // namespace tessera
