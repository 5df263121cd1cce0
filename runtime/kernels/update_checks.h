// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateChecks` checks the arguments of optimizer kernels. Internal.

#include "tessera/runtime/kernels/lamb.h"
#include "tessera/runtime/kernels/lamb_shard.h"
#include "tessera/runtime/kernels/update_runs.h"

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>

namespace tessera::runtime::detail {

/// Checks the arguments of one operator; errors begin with `op`.
class UpdateChecks {
 public:
  explicit UpdateChecks(const char* op) : op_(op) {}

  void in_unit_interval(const char* name, double beta) const;
  void not_negative(const char* name, double value) const;
  void counts_from_one(int64_t step) const;

  /// Checks for a flat float32 or float64 tensor on a device that has kernels.
  void master(const at::Tensor& master) const;
  /// Checks everything about `tensor` except its dtype.
  void like_master(
      const char* name,
      const at::Tensor& tensor,
      const at::Tensor& master) const;
  void same_dtype(
      const char* name,
      const at::Tensor& tensor,
      const at::Tensor& master) const;
  /// @param moment of master's dtype or bfloat16.
  void moment(
      const char* name,
      const at::Tensor& moment,
      const at::Tensor& master) const;
  void like_moment(
      const char* name,
      const at::Tensor& state,
      const at::Tensor& moment) const;
  void can_round(
      const at::Tensor& low_precision,
      const StochasticRounding& rounding) const;
  void factor(
      const char* name,
      const at::Tensor& factor,
      const at::Tensor& master) const;
  /// @param tensor of master's dtype (kNone), bfloat16 or float16.
  LowPrecision format_or_none(
      const char* name,
      const at::Tensor& tensor,
      const at::Tensor& master) const;
  /// @param tensor bfloat16 or float16, or undefined.
  LowPrecision format_of(const char* name, const at::Tensor& tensor) const;

 private:
  const char* op_;
};

/// Checks a run of AdamW or LAMB.
void check_adam(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    const AdamWStep& step);

/// Checks the tensors of a run, and that they can be rounded as requested.
/// @param moments number of state tensors of the run.
void check_tensors(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    int moments,
    const StochasticRounding& rounding);

/// Makes the shard of a checked run: its arrays as kernels take them.
/// @param moments number of state tensors of the run.
template <typename Shard, typename Step>
Shard make_shard(
    const UpdateChecks& check,
    const UpdateTensors& t,
    const Step& step,
    int moments) {
  using T = typename Shard::Master;
  const auto address = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
  };
  return {
      .master = t.master.mutable_data_ptr<T>(),
      .grad = t.grad.const_data_ptr(),
      .grad_format = check.format_or_none("grad", t.grad, t.master),
      .moment = moments > 0 ? address(t.moment) : nullptr,
      .moment_sq = moments > 1 ? address(t.moment_sq) : nullptr,
      .moment_diff = moments > 2 ? address(t.moment_diff) : nullptr,
      .previous_grad = moments > 3 ? address(t.previous_grad) : nullptr,
      .moment_format = moments > 0
                           ? check.format_or_none("exp_avg", t.moment, t.master)
                           : LowPrecision::kNone,
      .low_precision = static_cast<uint16_t*>(address(t.low_precision)),
      .low_precision_format = check.format_of("low_precision", t.low_precision),
      .grad_factor = t.grad_factor.defined()
                         ? t.grad_factor.const_data_ptr<double>()
                         : nullptr,
      .rounding = RoundingKey(step.rounding),
      .numel = t.master.numel(),
      .scalars = decltype(Shard::scalars)(step)};
}

template <typename T>
AdamWShard<T> shard_type(const AdamWRun&);
template <typename T>
SgdShard<T> shard_type(const SgdRun&);
template <typename T>
LionShard<T> shard_type(const LionRun&);
template <typename T>
LambShard<T> shard_type(const LambRun&);
template <typename T>
AdanShard<T> shard_type(const AdanRun&);

/// The shard of a run whose master is T.
template <typename T, typename Run>
using ShardOf = decltype(shard_type<T>(std::declval<Run>()));

inline int moments_of(const SgdStep& step) {
  return step.momentum == 0 ? 0 : 1;
}
inline int moments_of(const LionStep&) {
  return 1;
}
inline int moments_of(const AdamWStep&) {
  return 2;
}
inline int moments_of(const AdanStep&) {
  return 4;
}

/// Makes the shard of a checked run, with all that kernels take from it.
template <typename T, typename Run>
ShardOf<T, Run> shard_of(const UpdateChecks& check, const Run& run) {
  auto shard = make_shard<ShardOf<T, Run>>(
      check, run.tensors, run.step, moments_of(run.step));
  if constexpr (std::is_same_v<Run, LambRun>) {
    if (run.lr_factor.defined()) {
      shard.scalars.lr_factor = run.lr_factor.template const_data_ptr<double>();
    }
  }
  return shard;
}

} // namespace tessera::runtime::detail
