// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_runs.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <c10/core/DeviceGuard.h>

#include <utility>
#include <vector>

namespace tessera {

namespace {

using detail::UpdateChecks;

/// How many moments a run has.
int moments_of(const SgdStep& step) {
  return step.momentum == 0 ? 0 : 1;
}
int moments_of(const LionStep&) {
  return 1;
}
int moments_of(const AdamWStep&) {
  return 2;
}

void check_run(const UpdateChecks& check, const AdamWRun& run) {
  detail::check_adam(check, run.tensors, run.step);
}

void check_run(const UpdateChecks& check, const SgdRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("momentum", run.step.momentum);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.counts_from_one(run.step.step);
  detail::check_tensors(
      check, run.tensors, moments_of(run.step), run.step.rounding);
}

void check_run(const UpdateChecks& check, const LionRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.in_unit_interval("beta1", run.step.beta1);
  check.in_unit_interval("beta2", run.step.beta2);
  detail::check_tensors(
      check, run.tensors, moments_of(run.step), run.step.rounding);
}

template <typename T>
CpuUpdate cpu_update(const AdamWShard<T>& shard, const AdamWStep& step) {
  return adamw_update(best_isa(), shard, step.sqrt_rounding);
}

template <typename Shard, typename Step>
CpuUpdate cpu_update(const Shard& shard, const Step&) {
  return update_of(best_isa(), shard);
}

template <typename T>
AdamWShard<T> shard_type(const AdamWStep&);
template <typename T>
SgdShard<T> shard_type(const SgdStep&);
template <typename T>
LionShard<T> shard_type(const LionStep&);

/// The shards of checked runs.
template <typename Shard, typename Run>
std::vector<Shard> shards_of(
    const UpdateChecks& check,
    std::span<const Run> runs) {
  const at::Tensor& first = runs.front().tensors.master;
  std::vector<Shard> shards;
  shards.reserve(runs.size());
  for (const Run& run : runs) {
    check_run(check, run);
    check.same_dtype("a run", run.tensors.master, first);
    TESSERA_CHECK(
        run.tensors.master.device() == first.device(),
        "optimizer update: runs on ",
        run.tensors.master.device(),
        " and on ",
        first.device(),
        " in one call");
    shards.push_back(detail::make_shard<Shard>(
        check, run.tensors, run.step, moments_of(run.step)));
  }
  return shards;
}

/// Updates on CUDA; on CPU, hands the updates to `use`.
template <typename T, typename Run, typename Use>
void dispatch(
    const UpdateChecks& check,
    std::span<const Run> runs,
    const Use& use) {
  using Shard = decltype(shard_type<T>(runs[0].step));
  const auto shards = shards_of<Shard>(check, runs);
  const at::Tensor& first = runs.front().tensors.master;
  const c10::DeviceGuard guard(first.device());
  if (first.is_cuda()) {
    update_cuda(std::span<const Shard>(shards));
    return;
  }
  std::vector<CpuUpdate> updates;
  updates.reserve(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    updates.push_back(cpu_update(shards[i], runs[i].step));
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

template <typename Run>
bool run_all(const char* op, std::span<const Run> runs) {
  bool finite = true;
  dispatch(op, runs, [&](std::vector<CpuUpdate> updates) {
    finite = run_cpu_updates(updates);
  });
  return finite;
}

template <typename Run>
PendingUpdate submit_all(const char* op, std::span<const Run> runs) {
  PendingUpdate pending;
  dispatch(op, runs, [&](std::vector<CpuUpdate> updates) {
    // The tensors live as long as the work.
    for (size_t i = 0; i < updates.size(); ++i) {
      updates[i].range =
          [range = std::move(updates[i].range), tensors = runs[i].tensors](
              int64_t begin, int64_t end) { return range(begin, end); };
    }
    pending = submit_cpu_updates(std::move(updates));
  });
  return pending;
}

} // namespace

bool adamw_runs_(std::span<const AdamWRun> runs) {
  return run_all("adamw_", runs);
}

bool sgd_runs_(std::span<const SgdRun> runs) {
  return run_all("sgd_", runs);
}

bool lion_runs_(std::span<const LionRun> runs) {
  return run_all("lion_", runs);
}

PendingUpdate submit_adamw_runs_(std::span<const AdamWRun> runs) {
  return submit_all("adamw_", runs);
}

PendingUpdate submit_sgd_runs_(std::span<const SgdRun> runs) {
  return submit_all("sgd_", runs);
}

PendingUpdate submit_lion_runs_(std::span<const LionRun> runs) {
  return submit_all("lion_", runs);
}

} // namespace tessera
