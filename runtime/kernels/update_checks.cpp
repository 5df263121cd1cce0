// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/update_checks.h"

#include "tessera/runtime/core/error.h"

#include <ATen/DeviceAccelerator.h>

#include <array>
#include <cmath>

namespace tessera::runtime::detail {

void UpdateChecks::in_unit_interval(const char* name, double beta) const {
  TESSERA_CHECK(
      beta >= 0 && beta < 1,
      "{}: {} is {}, but must be in [0, 1)",
      op_,
      name,
      beta);
}

void UpdateChecks::not_negative(const char* name, double value) const {
  TESSERA_CHECK(
      value >= 0 && std::isfinite(value),
      "{}: {} is {}, but must be finite and not negative",
      op_,
      name,
      value);
}

void UpdateChecks::counts_from_one(int64_t step) const {
  TESSERA_CHECK(step >= 1, "{}: step is {}, but steps count from 1", op_, step);
}

void UpdateChecks::master(const at::Tensor& master) const {
  like_master("master", master, master);
  TESSERA_CHECK(
      master.is_cpu() || at::isAccelerator(master.device().type()),
      "{}: master is on {}, but must be on the CPU or an accelerator",
      op_,
      master.device());
  TESSERA_CHECK(
      master.scalar_type() == at::kFloat || master.scalar_type() == at::kDouble,
      "{}: master is {}, but must be Float or Double; pass low-precision weights as low_precision",
      op_,
      master.scalar_type());
}

void UpdateChecks::like_master(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& master) const {
  TESSERA_CHECK(tensor.defined(), "{}: {} is undefined", op_, name);
  TESSERA_CHECK(
      tensor.dim() == 1 && tensor.numel() == master.numel(),
      "{}: {} has shape {}, but all tensors must be flat, with master's numel ({})",
      op_,
      name,
      tensor.sizes(),
      master.numel());
  TESSERA_CHECK(
      tensor.device() == master.device(),
      "{}: {} is on {}, but master is on {}",
      op_,
      name,
      tensor.device(),
      master.device());
  TESSERA_CHECK(
      tensor.layout() == at::kStrided && tensor.is_contiguous(),
      "{}: {} is not contiguous; pass a dense, contiguous view of the shard",
      op_,
      name);
}

void UpdateChecks::same_dtype(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& master) const {
  TESSERA_CHECK(
      tensor.scalar_type() == master.scalar_type(),
      "{}: {} is {}, but master is {}",
      op_,
      name,
      tensor.scalar_type(),
      master.scalar_type());
}

LowPrecision UpdateChecks::format_of(const char* name, const at::Tensor& tensor)
    const {
  if (!tensor.defined()) {
    return LowPrecision::kNone;
  }
  if (tensor.scalar_type() == at::kBFloat16) {
    return LowPrecision::kBFloat16;
  }
  TESSERA_CHECK(
      tensor.scalar_type() == at::kHalf,
      "{}: {} is {}, but must be BFloat16 or Half",
      op_,
      name,
      tensor.scalar_type());
  return LowPrecision::kFloat16;
}

LowPrecision UpdateChecks::format_or_none(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& master) const {
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype == at::kBFloat16 || dtype == at::kHalf) {
    return format_of(name, tensor);
  }
  same_dtype(name, tensor, master);
  return LowPrecision::kNone;
}

void UpdateChecks::moment(
    const char* name,
    const at::Tensor& moment,
    const at::Tensor& master) const {
  like_master(name, moment, master);
  if (moment.scalar_type() != at::kBFloat16) {
    same_dtype(name, moment, master);
  }
}

void UpdateChecks::like_moment(
    const char* name,
    const at::Tensor& state,
    const at::Tensor& moment) const {
  TESSERA_CHECK(
      state.scalar_type() == moment.scalar_type(),
      "{}: {} is {}, but exp_avg is {}; all moments must have the same dtype",
      op_,
      name,
      state.scalar_type(),
      moment.scalar_type());
}

void check_tensors(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    int states,
    const StochasticRounding& rounding) {
  const at::Tensor& master = tensors.master;
  check.master(master);
  check.like_master("grad", tensors.grad, master);
  check.format_or_none("grad", tensors.grad, master);
  constexpr std::array<const char*, UpdateTensors::kStates> kNames{
      "exp_avg", "exp_avg_sq", "exp_avg_diff", "previous_grad"};
  for (size_t i = 0; i < static_cast<size_t>(states); ++i) {
    const at::Tensor& state = *tensors.states()[i];
    check.moment(kNames[i], state, master);
    check.like_moment(kNames[i], state, tensors.moment);
  }
  if (tensors.low_precision.defined()) {
    check.like_master("low_precision", tensors.low_precision, master);
  }
  check.can_round(tensors.low_precision, rounding);
  check.factor("grad_factor", tensors.grad_factor, master);
}

void UpdateChecks::factor(
    const char* name,
    const at::Tensor& factor,
    const at::Tensor& master) const {
  TESSERA_CHECK(
      !factor.defined() ||
          (factor.numel() == 1 && factor.scalar_type() == at::kDouble &&
           factor.device() == master.device()),
      "{}: {} is {} of shape {} on {}; it must be one Double on {}",
      op_,
      name,
      factor.toString(),
      factor.sizes(),
      factor.device(),
      master.device());
}

void UpdateChecks::can_round(
    const at::Tensor& low_precision,
    const StochasticRounding& rounding) const {
  TESSERA_CHECK(
      !rounding.enabled ||
          format_of("low_precision", low_precision) != LowPrecision::kFloat16,
      "{}: low_precision is Half, which stochastic rounding does not support; use BFloat16 or round to nearest",
      op_);
}

} // namespace tessera::runtime::detail
