// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_segments.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace tessera::runtime {

namespace {

using detail::UpdateChecks;

/// The shards of checked runs, which all have steps of this type.
template <typename T, typename Step>
std::vector<ShardOf<T, Step>> shards_of(
    const UpdateChecks& check,
    std::span<const UpdateSegment> segments) {
  const at::Tensor& first = segments.front().tensors.master;
  std::vector<ShardOf<T, Step>> shards;
  shards.reserve(segments.size());
  for (const UpdateSegment& segment : segments) {
    const auto* step = std::get_if<Step>(&segment.step);
    TESSERA_CHECK(
        step != nullptr,
        "{}: one call has steps of several optimizers; it must have those of one",
        Step::kName);
    const at::Tensor& master = segment.tensors.master;
    detail::check_segment(check, segment.tensors, *step);
    check.same_dtype("a run", master, first);
    TESSERA_CHECK(
        master.device() == first.device(),
        "optimizer update: one call has runs on {} and on {}; all must be on one device",
        master.device(),
        first.device());
    shards.push_back(
        detail::make_shard<ShardOf<T, Step>>(check, segment.tensors, *step));
  }
  return shards;
}

/// "tessera::adamw_".
template <typename Step>
const std::string kKernelName = std::string("tessera::") + Step::kName;

void count_update(DryKernel& kernel, const UpdateTensors& tensors) {
  kernel.reads(tensors.master);
  kernel.reads(tensors.grad);
  kernel.writes(tensors.master);
  for (const at::Tensor* state : tensors.states()) {
    kernel.reads(*state);
    kernel.writes(*state);
  }
  kernel.writes(tensors.low_precision);
}

/// Updates on an accelerator; on CPU, passes the updates to `use`.
template <typename T, typename Step, typename Use>
void dispatch(
    const UpdateChecks& check,
    std::span<const UpdateSegment> segments,
    const Use& use) {
  auto shards = shards_of<T, Step>(check, segments);
  const at::Tensor& first = segments.front().tensors.master;
  const c10::DeviceGuard guard(first.device());
  if (!first.is_cpu()) {
    update_cuda(std::span<const ShardOf<T, Step>>(shards));
    return;
  }
  if (is_dry_memory(first.const_data_ptr())) {
    DryKernel kernel(kKernelName<Step>.c_str());
    for (const UpdateSegment& segment : segments) {
      count_update(kernel, segment.tensors);
    }
    return;
  }
  std::vector<CpuUpdate> updates;
  updates.reserve(shards.size());
  for (auto& shard : shards) {
    fold_grad_factor(shard);
    updates.push_back(update_of(best_isa(), shard));
  }
  use(std::move(updates));
}

/// Copies [begin, end) of one tensor to another, if it is defined.
void copy_range(
    const at::Tensor& into,
    const at::Tensor& from,
    int64_t begin,
    int64_t end) {
  if (from.defined()) {
    const auto item = static_cast<int64_t>(into.itemsize());
    std::memcpy(
        static_cast<std::byte*>(into.mutable_data_ptr()) + begin * item,
        static_cast<const std::byte*>(from.const_data_ptr()) + begin * item,
        static_cast<size_t>((end - begin) * item));
  }
}

void check_before(const UpdateTensors& tensors, const UpdateTensors& before) {
  const auto check = [](const at::Tensor& into, const at::Tensor& from) {
    TESSERA_CHECK(
        !from.defined() ||
            (into.is_cpu() && from.is_cpu() && from.is_contiguous() &&
             into.sizes() == from.sizes() &&
             into.scalar_type() == from.scalar_type()),
        "optimizer update: a run of {} of shape {} cannot start from {} of shape {}; both must be on the CPU, with the same dtype and shape.",
        into.toString(),
        into.sizes(),
        from.toString(),
        from.sizes());
  };
  check(tensors.master, before.master);
  for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
    check(*tensors.states()[i], *before.states()[i]);
  }
}

/// The update preceded by the copy from `before`, piece by piece, so that each
/// piece is in the cache when it is updated.
CpuUpdate from_copy(
    CpuUpdate update,
    const UpdateTensors& tensors,
    const UpdateTensors& before) {
  update.range = [&tensors, &before, range = std::move(update.range)](
                     int64_t begin, int64_t end) {
    constexpr int64_t kCopyChunk = 1 << 12;
    static_assert(kUpdateChunk % kCopyChunk == 0);
    bool finite = true;
    for (int64_t at = begin; at < end; at += kCopyChunk) {
      const int64_t chunk_end = std::min(at + kCopyChunk, end);
      copy_range(tensors.master, before.master, at, chunk_end);
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        copy_range(*tensors.states()[i], *before.states()[i], at, chunk_end);
      }
      finite = range(at, chunk_end) && finite;
    }
    return finite;
  };
  return update;
}

} // namespace

bool update_segments_(
    std::span<const UpdateSegment> segments,
    std::span<const UpdateTensors> before) {
  TESSERA_CHECK(
      before.empty() || before.size() == segments.size(),
      "update_segments_: {} starting values for {} runs; give one for each run, or none",
      before.size(),
      segments.size());
  if (segments.empty()) {
    return true;
  }
  for (size_t i = 0; i < before.size(); ++i) {
    check_before(segments[i].tensors, before[i]);
  }
  bool finite = true;
  const auto use = [&](std::vector<CpuUpdate> updates) {
    for (size_t i = 0; i < before.size(); ++i) {
      updates[i] =
          from_copy(std::move(updates[i]), segments[i].tensors, before[i]);
    }
    finite = run_cpu_updates(updates);
  };
  const at::Tensor& master = segments.front().tensors.master;
  std::visit(
      [&]<typename Step>(const Step&) {
        const UpdateChecks check(Step::kName);
        check.master(master);
        if (master.scalar_type() == at::kDouble) {
          dispatch<double, Step>(check, segments, use);
        } else {
          dispatch<float, Step>(check, segments, use);
        }
      },
      segments.front().step);
  return finite;
}

} // namespace tessera::runtime
