// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateChecks` checks the arguments of optimizer kernels. Internal.

#include "tessera/runtime/kernels/update_segments.h"

#include <ATen/core/Tensor.h>

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

/// Checks the tensors of a run, and that they can be rounded as requested.
/// @param states number of state tensors of the run.
void check_tensors(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    int states,
    const StochasticRounding& rounding);

template <typename Step>
void check_segment(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    const Step& step) {
  step.check(check);
  check_tensors(check, tensors, step.states(), step.rounding);
}

/// Makes the shard of a checked run: its arrays as kernels take them, and the
/// rule of its step.
template <typename Shard, typename Step>
Shard make_shard(
    const UpdateChecks& check,
    const UpdateTensors& t,
    const Step& step) {
  const auto address = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
  };
  Shard shard{
      .master = t.master.mutable_data_ptr<typename Shard::Master>(),
      .grad = t.grad.const_data_ptr(),
      .grad_format = check.format_or_none("grad", t.grad, t.master),
      .low_precision = static_cast<uint16_t*>(address(t.low_precision)),
      .low_precision_format = check.format_of("low_precision", t.low_precision),
      .grad_factor = t.grad_factor.defined()
                         ? t.grad_factor.const_data_ptr<double>()
                         : nullptr,
      .rounding = RoundingKey(step.rounding),
      .numel = t.master.numel(),
      .rule = typename Shard::Rule(step)};
  for (size_t k = 0; k < static_cast<size_t>(step.states()); ++k) {
    shard.states[k] = address(*t.states()[k]);
    shard.state_format = check.format_or_none("exp_avg", t.moment, t.master);
  }
  return shard;
}

} // namespace tessera::runtime::detail
