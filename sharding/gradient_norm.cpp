// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/gradient_norm.h"

#include "tessera/runtime/kernels/power_sum.h"

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <vector>

namespace tessera {

namespace {

/// This rank's parts of a group's gradients, in `shard`.
std::vector<at::Tensor> runs_with_gradient(
    const GradientBucket& bucket,
    const at::Tensor& shard) {
  std::vector<at::Tensor> runs;
  for (const FlatRun& run : bucket.own_runs()) {
    if (bucket.has_gradient(run.parameter)) {
      runs.push_back(shard.narrow(0, run.shard_offset, run.numel));
    }
  }
  return runs;
}

/// power_sums() of this rank's parts of all gradients, and their factors. What
/// is in memory is added up together; what is in files, one group at a time.
std::vector<double> sums_of_runs(
    const Pager& pager,
    double p,
    std::vector<double>& factors) {
  std::vector<double> sums;
  std::vector<at::Tensor> pending;
  const auto add_up = [&] {
    const std::vector<double> more = power_sums(pending, p);
    sums.insert(sums.end(), more.begin(), more.end());
    pending.clear();
  };
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    const GradientBucket* bucket = pager.bucket(g);
    if (bucket == nullptr || !bucket->any_gradient()) {
      continue;
    }
    const RestingTensor resting = bucket->shard();
    const at::Tensor shard = resting.load();
    const bool together =
        pending.empty() || pending.front().device() == shard.device();
    if (!together) {
      add_up();
    }
    for (const at::Tensor& run : runs_with_gradient(*bucket, shard)) {
      pending.push_back(run);
      factors.push_back(bucket->factor());
    }
    if (!resting.in_memory()) {
      add_up();
    }
  }
  add_up();
  return sums;
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
  for (size_t g = 0; g < pager.groups().size(); ++g) {
    GradientBucket* bucket = pager.bucket(g);
    if (bucket == nullptr || !bucket->any_gradient()) {
      continue;
    }
    const double bound = limit / bucket->factor();
    bucket->change([&](const at::Tensor& shard) {
      for (const at::Tensor& run : runs_with_gradient(*bucket, shard)) {
        run.clamp_(-bound, bound);
      }
    });
  }
}

} // namespace tessera
