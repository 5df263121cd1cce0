// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_runs.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/update_checks.h"
#include "tessera/runtime/kernels/update_cpu.h"

#include <c10/core/DeviceGuard.h>

#include <vector>

namespace tessera {

namespace {

using detail::UpdateChecks;

/// How many moments a step of SGD or Lion has.
int moments_of(const SgdStep& step) {
  return step.momentum == 0 ? 0 : 1;
}
int moments_of(const LionStep&) {
  return 1;
}

LowPrecision check_run(const UpdateChecks& check, const AdamWRun& run) {
  return detail::check_adam(check, run.tensors, run.step);
}

LowPrecision check_run(const UpdateChecks& check, const SgdRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("momentum", run.step.momentum);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.counts_from_one(run.step.step);
  return detail::check_tensors(check, run.tensors, moments_of(run.step));
}

LowPrecision check_run(const UpdateChecks& check, const LionRun& run) {
  check.not_negative("lr", run.step.lr);
  check.not_negative("weight_decay", run.step.weight_decay);
  check.in_unit_interval("beta1", run.step.beta1);
  check.in_unit_interval("beta2", run.step.beta2);
  return detail::check_tensors(check, run.tensors, 1);
}

uint16_t* bits_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<uint16_t*>(tensor.mutable_data_ptr())
                          : nullptr;
}

template <typename T>
AdamWShard<T> shard_of(
    const UpdateTensors& t,
    const AdamWStep& step,
    LowPrecision grad_format,
    LowPrecision format) {
  return {
      .master = t.master.mutable_data_ptr<T>(),
      .grad = t.grad.const_data_ptr(),
      .grad_format = grad_format,
      .exp_avg = t.moment.mutable_data_ptr<T>(),
      .exp_avg_sq = t.moment_sq.mutable_data_ptr<T>(),
      .low_precision = bits_of(t.low_precision),
      .low_precision_format = format,
      .numel = t.master.numel(),
      .scalars = AdamWScalars<T>(step)};
}

template <typename T, typename Scalars, typename Step>
UpdateShard<T, Scalars> one_moment_shard(
    const UpdateTensors& t,
    const Step& step,
    LowPrecision grad_format,
    LowPrecision format) {
  return {
      .master = t.master.mutable_data_ptr<T>(),
      .grad = t.grad.const_data_ptr(),
      .grad_format = grad_format,
      .low_precision_format = format,
      .moment = moments_of(step) > 0 ? t.moment.mutable_data_ptr<T>() : nullptr,
      .low_precision = bits_of(t.low_precision),
      .numel = t.master.numel(),
      .scalars = Scalars(step)};
}

template <typename T>
SgdShard<T> shard_of(
    const UpdateTensors& t,
    const SgdStep& step,
    LowPrecision grad_format,
    LowPrecision format) {
  return one_moment_shard<T, SgdScalars<T>>(t, step, grad_format, format);
}

template <typename T>
LionShard<T> shard_of(
    const UpdateTensors& t,
    const LionStep& step,
    LowPrecision grad_format,
    LowPrecision format) {
  return one_moment_shard<T, LionScalars<T>>(t, step, grad_format, format);
}

void update_on_cpu(const AdamWShard<float>& shard, const AdamWStep& step) {
  adamw_cpu(best_isa(), shard, step.sqrt_rounding);
}

void update_on_cpu(const AdamWShard<double>& shard, const AdamWStep& step) {
  adamw_cpu(shard, step.sqrt_rounding);
}

template <typename Shard, typename Step>
void update_on_cpu(const Shard& shard, const Step&) {
  update_cpu(best_isa(), shard);
}

template <typename T, typename Run>
void update_all(const UpdateChecks& check, std::span<const Run> runs) {
  const at::Tensor& first = runs.front().tensors.master;
  using Shard = decltype(shard_of<T>(runs[0].tensors, runs[0].step, {}, {}));
  std::vector<Shard> shards;
  shards.reserve(runs.size());
  for (const Run& run : runs) {
    const LowPrecision grad_format = check_run(check, run);
    check.same_dtype("a run", run.tensors.master, first);
    TESSERA_CHECK(
        run.tensors.master.device() == first.device(),
        "optimizer update: runs on ",
        run.tensors.master.device(),
        " and on ",
        first.device(),
        " in one call");
    shards.push_back(shard_of<T>(
        run.tensors,
        run.step,
        grad_format,
        check.format_of("low_precision", run.tensors.low_precision)));
  }
  const c10::DeviceGuard guard(first.device());
  if (first.is_cuda()) {
    update_cuda(std::span<const Shard>(shards));
    return;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    update_on_cpu(shards[i], runs[i].step);
  }
}

template <typename Run>
void update_runs(const char* op, std::span<const Run> runs) {
  if (runs.empty()) {
    return;
  }
  const UpdateChecks check(op);
  check.master(runs.front().tensors.master);
  if (runs.front().tensors.master.scalar_type() == at::kDouble) {
    update_all<double>(check, runs);
  } else {
    update_all<float>(check, runs);
  }
}

} // namespace

void adamw_runs_(std::span<const AdamWRun> runs) {
  update_runs("adamw_", runs);
}

void sgd_runs_(std::span<const SgdRun> runs) {
  update_runs("sgd_", runs);
}

void lion_runs_(std::span<const LionRun> runs) {
  update_runs("lion_", runs);
}

} // namespace tessera
