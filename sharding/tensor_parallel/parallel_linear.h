// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ColumnParallelLinear`, `RowParallelLinear` and `Linear1D` are linear layers
// that are made partitioned over a tensor-parallel group (arXiv:1909.08053).

#include "tessera/sharding/lazy/distributed_parameter.h"
#include "tessera/sharding/tensor_parallel/tensor_parallel.h"

#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera {

/// The dimension of a linear layer's weight [out, in] that is partitioned.
enum class LinearDivision {
  kData, ///< none: every rank has the whole layer
  kColumn, ///< out: every rank computes some of the output features
  kRow, ///< in: every rank uses some of the input features
};

struct ParallelLinearOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = true;
  /// kColumn: every rank returns all output features
  /// (TensorDivision::kColumnGathered).
  bool gather_output = false;
  /// Number of consecutive features that stay on one rank, such as those of a
  /// head.
  int64_t unit = 1;
  /// By default that of torch::nn::Linear: uniform within 1 / sqrt(in).
  InitMethod weight_init;
  InitMethod bias_init;
  DistributedParameterOptions parameters;
};

/// y = x W^T + b, as a torch::nn::Linear computes it that a tensor plan has
/// divided (apply_tensor_plan()): x [..., in] and y [..., out] look whole,
/// whatever a rank holds of them ([Note: DTensors]).
///
/// | division | W here      | b here  | y                                    |
/// | kData    | whole       | whole   | divided as x, unless by features     |
/// | kColumn  | [out/n, in] | [out/n] | features are divided, or gathered    |
/// | kRow     | [out, in/n] | whole   | the sum over the ranks; whole, or    |
/// |          |             |         | divided along the sequence           |
///
/// The parameters `weight` and `bias` are distributed parameters, whose values
/// come from init_parameters(), by name: the same as in the whole parameter,
/// for any number of ranks. Feature counts need not divide evenly, see
/// DimSplit.
class ParallelLinearImpl : public DistributedModule {
 public:
  /// @throws tessera::Error when there is no group, there are fewer features to
  ///   partition than ranks, or an option does not apply to the division.
  ParallelLinearImpl(
      LinearDivision division,
      const TensorParallel& tp,
      const ParallelLinearOptions& options);

  /// Collective unless the group has one rank or the layer is whole.
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias; ///< undefined if there is none
};

/// One name for all three divisions (LiBai's).
using Linear1DImpl = ParallelLinearImpl;
TORCH_MODULE(Linear1D);

class ColumnParallelLinearImpl : public ParallelLinearImpl {
 public:
  ColumnParallelLinearImpl(
      const TensorParallel& tp,
      const ParallelLinearOptions& options)
      : ParallelLinearImpl(LinearDivision::kColumn, tp, options) {}
};
TORCH_MODULE(ColumnParallelLinear);

class RowParallelLinearImpl : public ParallelLinearImpl {
 public:
  RowParallelLinearImpl(
      const TensorParallel& tp,
      const ParallelLinearOptions& options)
      : ParallelLinearImpl(LinearDivision::kRow, tp, options) {}
};
TORCH_MODULE(RowParallelLinear);

} // namespace tessera
