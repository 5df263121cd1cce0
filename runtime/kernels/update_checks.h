// SPDX-License-Identifier: Apache-2.0
#pragma once
// What optimizer kernels ask of their arguments. Internal.

#include "tessera/runtime/kernels/update_runs.h"

#include <ATen/core/Tensor.h>

namespace tessera::detail {

/// Checks one operator's arguments; `op` heads its errors.
class UpdateChecks {
 public:
  explicit UpdateChecks(const char* op) : op_(op) {}

  void in_unit_interval(const char* name, double beta) const;
  void not_negative(const char* name, double value) const;
  void counts_from_one(int64_t step) const;

  /// A flat float32 or float64 tensor on a device that has kernels.
  void master(const at::Tensor& master) const;
  /// Everything about `tensor` but its dtype.
  void like_master(
      const char* name,
      const at::Tensor& tensor,
      const at::Tensor& master) const;
  void same_dtype(
      const char* name,
      const at::Tensor& tensor,
      const at::Tensor& master) const;
  /// @param tensor bfloat16 or float16, or undefined.
  LowPrecision format_of(const char* name, const at::Tensor& tensor) const;

 private:
  const char* op_;
};

/// Checks a run of AdamW or LAMB. @return the format of the gradient.
LowPrecision check_adam(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    const AdamWStep& step);

/// Checks the tensors of a run. @param moments how many of them it has.
/// @return the format of the gradient.
LowPrecision check_tensors(
    const UpdateChecks& check,
    const UpdateTensors& tensors,
    int moments);

} // namespace tessera::detail
