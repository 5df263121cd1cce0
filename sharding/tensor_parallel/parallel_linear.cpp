// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/tensor_parallel/parallel_linear.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"

#include <ATen/ops/linear.h>

#include <cmath>

namespace tessera {

namespace {

void check_linear(
    LinearDivision division,
    const TensorParallel& tp,
    const ParallelLinearOptions& options) {
  TESSERA_CHECK(
      tp.group != nullptr,
      "a parallel linear layer was given no group: set TensorParallel::group; for a single rank, use a Communicator of one.");
  TESSERA_CHECK(
      options.in >= 1 && options.out >= 1,
      "a parallel linear layer has {} input and {} output features; both must be at least 1.",
      options.in,
      options.out);
  TESSERA_CHECK(
      !options.gather_output || division == LinearDivision::kColumn,
      "gather_output is for column-parallel layers only: the output of other layers is not divided by features.");
}

} // namespace

ParallelLinearImpl::ParallelLinearImpl(
    LinearDivision division,
    const TensorParallel& tp,
    const ParallelLinearOptions& options) {
  check_linear(division, tp, options);
  const double bound = 1 / std::sqrt(static_cast<double>(options.in));
  const InitMethod uniform = uniform_init(-bound, bound);
  weight = register_parameter(
      "weight",
      DistributedParameter(
          {options.out, options.in},
          options.weight_init ? options.weight_init : uniform,
          options.parameters));
  if (options.bias) {
    bias = register_parameter(
        "bias",
        DistributedParameter(
            {options.out},
            options.bias_init ? options.bias_init : uniform,
            options.parameters));
  }
  const auto divide =
      [&](const at::Tensor& parameter, const char* name, TensorDivision as) {
        divide_weight(parameter, name, as, options.unit, tp);
      };
  if (division == LinearDivision::kRow) {
    divide(weight, "RowParallelLinear.weight", TensorDivision::kRow);
  } else if (division == LinearDivision::kColumn) {
    const bool gathers = options.gather_output;
    divide(
        weight,
        "ColumnParallelLinear.weight",
        gathers ? TensorDivision::kColumnGathered : TensorDivision::kColumn);
    if (options.bias && !gathers) {
      divide(bias, "ColumnParallelLinear.bias", TensorDivision::kColumn);
    }
  }
}

at::Tensor ParallelLinearImpl::forward(const at::Tensor& x) {
  return at::linear(x, weight, bias);
}

} // namespace tessera
