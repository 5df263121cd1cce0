// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/lamb.h"

#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <vector>

namespace tessera::runtime {

namespace {

template <typename T>
std::vector<LambShard<T>> shards_of(std::span<const LambRun> runs) {
  const detail::UpdateChecks check("lamb");
  std::vector<LambShard<T>> shards;
  for (const LambRun& run : runs) {
    const UpdateTensors& t = run.tensors;
    detail::check_adam(check, t, run.step);
    check.same_dtype("a run", t.master, runs.front().tensors.master);
    shards.push_back(
        detail::make_shard<LambShard<T>>(check, t, run.step, /*moments=*/2));
  }
  return shards;
}

template <typename T>
bool moments(std::span<const LambRun> runs, std::span<double* const> sums) {
  auto shards = shards_of<T>(runs);
  const at::Tensor& master = runs.front().tensors.master;
  const c10::DeviceGuard guard(master.device());
  if (master.is_cpu()) {
    bool finite = true;
    for (size_t i = 0; i < shards.size(); ++i) {
      fold_grad_factor(shards[i]);
      const LambSums own = lamb_moments_cpu(best_isa(), shards[i]);
      sums[i][0] += own.weights;
      sums[i][1] += own.direction;
      finite &= own.grads_finite;
    }
    return finite;
  }
  const at::Tensor partial = at::zeros(
      {static_cast<int64_t>(runs.size()), kLambCudaBlocks, 2},
      master.options().dtype(at::kDouble));
  lamb_moments_cuda(
      std::span<const LambShard<T>>(shards),
      partial.mutable_data_ptr<double>());
  const at::Tensor totals = partial.sum(1).cpu();
  const auto* values = totals.const_data_ptr<double>();
  for (size_t i = 0; i < shards.size(); ++i) {
    sums[i][0] += values[2 * i];
    sums[i][1] += values[2 * i + 1];
  }
  return true;
}

template <typename T>
void weights(std::span<const LambRun> runs) {
  const auto shards = shards_of<T>(runs);
  const at::Tensor& master = runs.front().tensors.master;
  const c10::DeviceGuard guard(master.device());
  if (!master.is_cpu()) {
    update_cuda(std::span<const LambShard<T>>(shards));
    return;
  }
  for (const LambShard<T>& shard : shards) {
    lamb_weights_cpu(best_isa(), shard);
  }
}

} // namespace

bool lamb_moments_(
    std::span<const LambRun> runs,
    std::span<double* const> sums) {
  if (runs.empty()) {
    return true;
  }
  return runs.front().tensors.master.scalar_type() == at::kDouble
             ? moments<double>(runs, sums)
             : moments<float>(runs, sums);
}

void lamb_weights_(std::span<const LambRun> runs) {
  if (runs.empty()) {
    return;
  }
  if (runs.front().tensors.master.scalar_type() == at::kDouble) {
    weights<double>(runs);
  } else {
    weights<float>(runs);
  }
}

} // namespace tessera::runtime
