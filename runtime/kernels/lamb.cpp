// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/lamb.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <vector>

namespace tessera::runtime {

namespace {

template <typename T>
std::vector<LambShard<T>> shards_of(std::span<const LambSegment> segments) {
  const detail::UpdateChecks check("lamb");
  std::vector<LambShard<T>> shards;
  for (const LambSegment& segment : segments) {
    const UpdateTensors& t = segment.tensors;
    detail::check_segment(check, t, segment.step);
    check.same_dtype("a run", t.master, segments.front().tensors.master);
    check.factor("lr_factor", segment.lr_factor, t.master);
    auto& shard = shards.emplace_back(
        detail::make_shard<LambShard<T>>(check, t, segment.step));
    if (segment.lr_factor.defined()) {
      shard.rule.lr_factor =
          segment.lr_factor.template const_data_ptr<double>();
    }
  }
  return shards;
}

template <typename T>
bool moments(std::span<const LambSegment> segments, const at::Tensor& sums) {
  auto shards = shards_of<T>(segments);
  const at::Tensor& master = segments.front().tensors.master;
  const c10::DeviceGuard guard(master.device());
  if (!master.is_cpu()) {
    const at::Tensor partial =
        at::zeros({sums.size(0), kLambCudaBlocks, 2}, sums.options());
    lamb_moments_cuda(
        std::span<const LambShard<T>>(shards),
        partial.mutable_data_ptr<double>());
    sums.copy_(partial.sum(1));
    return true;
  }
  if (is_dry_memory(master.const_data_ptr())) {
    DryKernel kernel("tessera::lamb_moments_");
    for (const LambSegment& segment : segments) {
      kernel.reads(segment.tensors.master);
      kernel.reads(segment.tensors.grad);
      for (const at::Tensor* moment : segment.tensors.states()) {
        kernel.reads(*moment);
        kernel.writes(*moment);
      }
    }
    return true;
  }
  bool finite = true;
  auto* sum = sums.mutable_data_ptr<double>();
  for (LambShard<T>& shard : shards) {
    fold_grad_factor(shard);
    const LambSums local = lamb_moments_cpu(best_isa(), shard);
    *sum++ = local.weights;
    *sum++ = local.direction;
    finite &= local.grads_finite;
  }
  return finite;
}

template <typename T>
void weights(std::span<const LambSegment> segments) {
  auto shards = shards_of<T>(segments);
  const at::Tensor& master = segments.front().tensors.master;
  const c10::DeviceGuard guard(master.device());
  if (!master.is_cpu()) {
    update_cuda(std::span<const LambShard<T>>(shards));
    return;
  }
  if (is_dry_memory(master.const_data_ptr())) {
    DryKernel kernel("tessera::lamb_weights_");
    for (const LambSegment& segment : segments) {
      kernel.reads(segment.tensors.master);
      kernel.writes(segment.tensors.master);
      for (const at::Tensor* moment : segment.tensors.states()) {
        kernel.reads(*moment);
      }
      kernel.writes(segment.tensors.low_precision);
    }
    return;
  }
  for (LambShard<T>& shard : shards) {
    fold_lr_factor(shard.rule);
    lamb_weights_cpu(best_isa(), shard);
  }
}

} // namespace

bool lamb_moments_(
    std::span<const LambSegment> segments,
    const at::Tensor& sums) {
  if (segments.empty()) {
    return true;
  }
  const at::Tensor& master = segments.front().tensors.master;
  TESSERA_CHECK(
      sums.dim() == 2 &&
          sums.size(0) == static_cast<int64_t>(segments.size()) &&
          sums.size(1) == 2 && sums.is_contiguous() &&
          sums.scalar_type() == at::kDouble && sums.device() == master.device(),
      "lamb_moments_: sums is {} of shape {} on {}; it must be contiguous Double of shape [{}, 2] on {}",
      sums.toString(),
      sums.sizes(),
      sums.device(),
      segments.size(),
      master.device());
  return master.scalar_type() == at::kDouble ? moments<double>(segments, sums)
                                             : moments<float>(segments, sums);
}

void lamb_weights_(std::span<const LambSegment> segments) {
  if (segments.empty()) {
    return;
  }
  if (segments.front().tensors.master.scalar_type() == at::kDouble) {
    weights<double>(segments);
  } else {
    weights<float>(segments);
  }
}

} // namespace tessera::runtime
