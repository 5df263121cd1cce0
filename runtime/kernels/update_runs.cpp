// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_runs.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_cpu.h"
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

void check_run(const UpdateChecks& check, const AdamWRun& run) {
  detail::check_adam(check, run.tensors, run.step);
}

void check_run(const UpdateChecks& check, const SgdRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("momentum", run.step.momentum);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.counts_from_one(run.step.step);
  detail::check_tensors(
      check, run.tensors, detail::moments_of(run.step), run.step.rounding);
}

void check_run(const UpdateChecks& check, const LionRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.in_unit_interval("beta1", run.step.beta1);
  check.in_unit_interval("beta2", run.step.beta2);
  detail::check_tensors(
      check, run.tensors, detail::moments_of(run.step), run.step.rounding);
}

void check_run(const UpdateChecks& check, const AdanRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("eps", run.step.eps);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.in_unit_interval("beta1", run.step.beta1);
  check.in_unit_interval("beta2", run.step.beta2);
  check.in_unit_interval("beta3", run.step.beta3);
  check.counts_from_one(run.step.step);
  detail::check_tensors(
      check, run.tensors, detail::moments_of(run.step), run.step.rounding);
}

template <typename T>
CpuUpdate cpu_update(const AdamWShard<T>& shard) {
  return adamw_update(best_isa(), shard);
}

template <typename Shard>
CpuUpdate cpu_update(const Shard& shard) {
  return update_of(best_isa(), shard);
}

/// The shards of checked runs.
template <typename T, typename Run>
std::vector<detail::ShardOf<T, Run>> shards_of(
    const UpdateChecks& check,
    std::span<const Run> runs) {
  const at::Tensor& first = runs.front().tensors.master;
  std::vector<detail::ShardOf<T, Run>> shards;
  shards.reserve(runs.size());
  for (const Run& run : runs) {
    check_run(check, run);
    check.same_dtype("a run", run.tensors.master, first);
    TESSERA_CHECK(
        run.tensors.master.device() == first.device(),
        "optimizer update: one call has runs on {} and on {}; all must be on one device",
        run.tensors.master.device(),
        first.device());
    shards.push_back(detail::shard_of<T>(check, run));
  }
  return shards;
}

/// Updates on an accelerator; on CPU, passes the updates to `use`.
template <typename T, typename Run, typename Use>
void dispatch(
    const UpdateChecks& check,
    std::span<const Run> runs,
    const Use& use) {
  using Shard = detail::ShardOf<T, Run>;
  auto shards = shards_of<T>(check, runs);
  const at::Tensor& first = runs.front().tensors.master;
  const c10::DeviceGuard guard(first.device());
  if (!first.is_cpu()) {
    update_cuda(std::span<const Shard>(shards));
    return;
  }
  std::vector<CpuUpdate> updates;
  updates.reserve(shards.size());
  for (auto& shard : shards) {
    fold_grad_factor(shard);
    updates.push_back(cpu_update(shard));
  }
  use(std::move(updates));
}

template <typename Run, typename Use>
void dispatch(const char* op, std::span<const Run> runs, const Use& use) {
  if (runs.empty()) {
    return;
  }
  const UpdateChecks check(op);
  check.master(runs.front().tensors.master);
  if (runs.front().tensors.master.scalar_type() == at::kDouble) {
    dispatch<double>(check, runs, use);
  } else {
    dispatch<float>(check, runs, use);
  }
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
    constexpr int64_t kPiece = 1 << 12;
    static_assert(kUpdateChunk % kPiece == 0);
    bool finite = true;
    for (int64_t at = begin; at < end; at += kPiece) {
      const int64_t piece_end = std::min(at + kPiece, end);
      copy_range(tensors.master, before.master, at, piece_end);
      for (size_t i = 0; i < UpdateTensors::kStates; ++i) {
        copy_range(*tensors.states()[i], *before.states()[i], at, piece_end);
      }
      finite = range(at, piece_end) && finite;
    }
    return finite;
  };
  return update;
}

template <typename Run>
bool run_all(
    const char* op,
    std::span<const Run> runs,
    std::span<const UpdateTensors> before) {
  TESSERA_CHECK(
      before.empty() || before.size() == runs.size(),
      "{}: {} starting values for {} runs; give one for each run, or none",
      op,
      before.size(),
      runs.size());
  for (size_t i = 0; i < before.size(); ++i) {
    check_before(runs[i].tensors, before[i]);
  }
  bool finite = true;
  dispatch(op, runs, [&](std::vector<CpuUpdate> updates) {
    for (size_t i = 0; i < before.size(); ++i) {
      updates[i] = from_copy(std::move(updates[i]), runs[i].tensors, before[i]);
    }
    finite = run_cpu_updates(updates);
  });
  return finite;
}

} // namespace

bool adamw_runs_(
    std::span<const AdamWRun> runs,
    std::span<const UpdateTensors> before) {
  return run_all("adamw_", runs, before);
}

bool sgd_runs_(
    std::span<const SgdRun> runs,
    std::span<const UpdateTensors> before) {
  return run_all("sgd_", runs, before);
}

bool lion_runs_(
    std::span<const LionRun> runs,
    std::span<const UpdateTensors> before) {
  return run_all("lion_", runs, before);
}

bool adan_runs_(
    std::span<const AdanRun> runs,
    std::span<const UpdateTensors> before) {
  return run_all("adan_", runs, before);
}

} // namespace tessera::runtime
