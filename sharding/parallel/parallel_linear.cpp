// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/parallel_linear.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/group_operations.h"
#include "tessera/sharding/parallel/overlapped_linear.h"

#include <ATen/ops/linear.h>

#include <cmath>

namespace tessera {

namespace {

sharding::DimSplit split_for(
    LinearDivision division,
    const TensorParallel& how,
    const ParallelLinearOptions& options) {
  TESSERA_CHECK(
      options.in >= 1 && options.out >= 1,
      "a parallel linear layer has {} input and {} output features; both must be at least 1.",
      options.in,
      options.out);
  TESSERA_CHECK(
      !options.gather_output || division == LinearDivision::kColumn,
      "gather_output is for column-parallel layers only: the output of other layers is not divided by features.");
  TESSERA_CHECK(
      options.input_is_parallel || division != LinearDivision::kRow ||
          !how.sequence,
      "a row-parallel layer under sequence parallelism takes its input as features of whole sequences: set input_is_parallel, after a column-parallel layer.");
  if (division == LinearDivision::kData) {
    return {options.out, 1};
  }
  return {
      division == LinearDivision::kColumn ? options.out : options.in,
      how.group->size(),
      options.unit};
}

} // namespace

ParallelLinearImpl::ParallelLinearImpl(
    LinearDivision division,
    const TensorParallel& how,
    const ParallelLinearOptions& options)
    : ParallelModule(how),
      division_(division),
      options_(options),
      split_(split_for(division, how, options)) {
  const double bound = 1 / std::sqrt(static_cast<double>(options.in));
  const InitMethod uniform = uniform_init(-bound, bound);
  const InitMethod weights =
      options.weight_init ? options.weight_init : uniform;
  const InitMethod biases = options.bias_init ? options.bias_init : uniform;
  const std::vector<int64_t> sizes{options.out, options.in};
  const bool column = division == LinearDivision::kColumn;
  weight = division == LinearDivision::kData
               ? register_whole("weight", sizes, weights, options.parameters)
               : register_part(
                     "weight",
                     sizes,
                     {column ? 0 : 1, options.unit},
                     weights,
                     options.parameters);
  if (options.bias) {
    bias = column ? register_part(
                        "bias",
                        {options.out},
                        {0, options.unit},
                        biases,
                        options.parameters)
                  : register_whole(
                        "bias", {options.out}, biases, options.parameters);
  }
}

at::Tensor ParallelLinearImpl::forward(const at::Tensor& x) {
  Communicator& group = *how().group;
  switch (division_) {
    case LinearDivision::kData:
      return at::linear(
          x, whole_parameter(weight, how()), whole_parameter(bias, how()));
    case LinearDivision::kColumn: {
      const at::Tensor y =
          sharding::enter_linear(x, {{weight, bias}}, how()).front();
      return options_.gather_output ? gather_parts(y, -1, split_, group) : y;
    }
    case LinearDivision::kRow: {
      const at::Tensor features =
          options_.input_is_parallel ? x : take_part(x, -1, split_, group);
      const at::Tensor y = sharding::leave_linear(features, weight, how());
      return bias.defined() ? y + whole_parameter(bias, how()) : y;
    }
  }
  TESSERA_FAIL("unknown LinearDivision.");
}

at::Tensor ParallelLinearImpl::forward_entered(
    const at::Tensor& entered) const {
  return at::linear(entered, weight, bias);
}

} // namespace tessera
