// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/adamw.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/adamw_cpu.h"
#include "tessera/runtime/kernels/cuda_registry.h"

#include <c10/core/DeviceGuard.h>

#include <cmath>

namespace tessera {

namespace {

void check_in_unit_interval(const char* name, double beta) {
  TESSERA_CHECK(
      beta >= 0 && beta < 1,
      "adamw_: ",
      name,
      " is ",
      beta,
      ", but must be in [0, 1)");
}

void check_not_negative(const char* name, double value) {
  TESSERA_CHECK(
      value >= 0 && std::isfinite(value),
      "adamw_: ",
      name,
      " is ",
      value,
      ", but must be finite and not negative");
}

void check_step(const AdamWStep& step) {
  check_not_negative("lr", step.lr);
  check_not_negative("eps", step.eps);
  check_not_negative("weight_decay", step.weight_decay);
  check_in_unit_interval("beta1", step.beta1);
  check_in_unit_interval("beta2", step.beta2);
  TESSERA_CHECK(
      step.step >= 1,
      "adamw_: step is ",
      step.step,
      ", but steps count from 1");
}

/// Everything about `tensor` but its dtype.
void check_like_master(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& master) {
  TESSERA_CHECK(tensor.defined(), "adamw_: ", name, " is undefined");
  TESSERA_CHECK(
      tensor.dim() == 1 && tensor.numel() == master.numel(),
      "adamw_: ",
      name,
      " has shape ",
      tensor.sizes(),
      ", but all tensors must be flat, of master's numel (",
      master.numel(),
      ")");
  TESSERA_CHECK(
      tensor.device() == master.device(),
      "adamw_: ",
      name,
      " is on ",
      tensor.device(),
      ", but master is on ",
      master.device());
  TESSERA_CHECK(
      tensor.layout() == at::kStrided && tensor.is_contiguous(),
      "adamw_: ",
      name,
      " is not contiguous; pass a dense, contiguous view of the shard");
}

void check_same_dtype(
    const char* name,
    const at::Tensor& tensor,
    const at::Tensor& master) {
  TESSERA_CHECK(
      tensor.scalar_type() == master.scalar_type(),
      "adamw_: ",
      name,
      " is ",
      tensor.scalar_type(),
      ", but master is ",
      master.scalar_type());
}

LowPrecision format_of(const at::Tensor& low_precision) {
  if (!low_precision.defined()) {
    return LowPrecision::kNone;
  }
  if (low_precision.scalar_type() == at::kBFloat16) {
    return LowPrecision::kBFloat16;
  }
  TESSERA_CHECK(
      low_precision.scalar_type() == at::kHalf,
      "adamw_: low_precision is ",
      low_precision.scalar_type(),
      ", but must be BFloat16 or Half");
  return LowPrecision::kFloat16;
}

void update(const AdamWShard<float>& shard, bool cuda, SqrtRounding rounding) {
  if (cuda) {
    adamw_cuda().update_float(shard);
  } else {
    adamw_cpu(best_isa(), shard, rounding);
  }
}

void update(const AdamWShard<double>& shard, bool cuda, SqrtRounding rounding) {
  if (cuda) {
    adamw_cuda().update_double(shard);
  } else {
    adamw_cpu(shard, rounding);
  }
}

} // namespace

void adamw_(
    const at::Tensor& master,
    const at::Tensor& grad,
    const at::Tensor& exp_avg,
    const at::Tensor& exp_avg_sq,
    const AdamWStep& step,
    const at::Tensor& low_precision) {
  check_step(step);
  check_like_master("master", master, master);
  TESSERA_CHECK(
      master.is_cpu() || master.is_cuda(),
      "adamw_: master is on ",
      master.device(),
      ", but must be on the CPU or a CUDA device");
  check_like_master("grad", grad, master);
  check_like_master("exp_avg", exp_avg, master);
  check_like_master("exp_avg_sq", exp_avg_sq, master);
  check_same_dtype("grad", grad, master);
  check_same_dtype("exp_avg", exp_avg, master);
  check_same_dtype("exp_avg_sq", exp_avg_sq, master);
  if (low_precision.defined()) {
    check_like_master("low_precision", low_precision, master);
  }
  const LowPrecision format = format_of(low_precision);
  auto* low_bits =
      low_precision.defined()
          ? static_cast<uint16_t*>(low_precision.mutable_data_ptr())
          : nullptr;

  const c10::DeviceGuard guard(master.device());
  const auto run = [&]<typename T>(T) {
    update(
        AdamWShard<T>{
            .master = master.mutable_data_ptr<T>(),
            .grad = grad.const_data_ptr<T>(),
            .exp_avg = exp_avg.mutable_data_ptr<T>(),
            .exp_avg_sq = exp_avg_sq.mutable_data_ptr<T>(),
            .low_precision = low_bits,
            .low_precision_format = format,
            .numel = master.numel(),
            .scalars = AdamWScalars<T>(step)},
        master.is_cuda(),
        step.sqrt_rounding);
  };
  if (master.scalar_type() == at::kDouble) {
    run(double{});
  } else {
    TESSERA_CHECK(
        master.scalar_type() == at::kFloat,
        "adamw_: master is ",
        master.scalar_type(),
        ", but must be Float or Double: low precision is for low_precision");
    run(float{});
  }
}

} // namespace tessera
