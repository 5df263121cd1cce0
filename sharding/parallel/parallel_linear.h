// SPDX-License-Identifier: Apache-2.0
#pragma once
// Linear layers whose weight is divided over a tensor-parallel group
// (arXiv:1909.08053).

#include "tessera/sharding/parallel/parallel_module.h"

#include <torch/nn/pimpl.h>

#include <cstdint>

namespace tessera {

/// Which dimension of a linear layer's weight [out, in] is divided.
enum class LinearDivision {
  kData, ///< none: every rank has the whole layer
  kColumn, ///< out: every rank computes some of the output features
  kRow, ///< in: every rank uses some of the input features
};

struct ParallelLinearOptions {
  int64_t in = 0;
  int64_t out = 0;
  bool bias = true;
  /// kColumn: the output is whole on every rank, in place of its features.
  bool gather_output = false;
  /// kRow: the input is this rank's features, as a column layer leaves them.
  /// Otherwise it is whole, which sequence parallelism does not have.
  bool input_is_parallel = true;
  /// Features that stay on one rank, such as those of a head.
  int64_t unit = 1;
  /// By default as torch::nn::Linear: uniform within 1 / sqrt(in).
  InitMethod weight_init;
  InitMethod bias_init;
  DistributedParameterOptions parameters;
};

/// y = x W^T + b, with activations between layers as TensorParallel says, or
/// parts of their features:
///
/// | division | x [..., in]   | W here       | b here | y [..., out]         |
/// | kData    | between layers| whole        | whole  | between layers       |
/// | kColumn  | between layers| [out/n, in]  | [out/n]| features, or gathered|
/// | kRow     | features      | [out, in/n]  | whole  | between layers       |
///
/// A row layer adds its bias once, behind the sum over the ranks. Its replicas
/// stay equal: all ranks see equal gradients, under sequence parallelism
/// because they are summed (whole_parameter()).
///
/// Feature counts need not divide evenly, see DimSplit.
class ParallelLinearImpl : public ParallelModule {
 public:
  /// @throws tessera::Error when the divided features are fewer than ranks, or
  ///     an option does not go with the division.
  ParallelLinearImpl(
      LinearDivision division,
      const TensorParallel& how,
      const ParallelLinearOptions& options);

  /// Collective unless the group has one rank.
  at::Tensor forward(const at::Tensor& x);

  /// A column layer behind enter_layer(), for several of them that enter
  /// together. Not collective.
  at::Tensor forward_entered(const at::Tensor& entered) const;

  const DimSplit& split() const {
    return split_;
  }

  at::Tensor weight;
  at::Tensor bias; ///< undefined without one

 private:
  LinearDivision division_;
  ParallelLinearOptions options_;
  DimSplit split_; ///< of the divided dimension
};

/// One name over all three (LiBai's).
using Linear1DImpl = ParallelLinearImpl;
TORCH_MODULE(Linear1D);

class ColumnParallelLinearImpl : public ParallelLinearImpl {
 public:
  ColumnParallelLinearImpl(
      const TensorParallel& how,
      const ParallelLinearOptions& options)
      : ParallelLinearImpl(LinearDivision::kColumn, how, options) {}
};
TORCH_MODULE(ColumnParallelLinear);

class RowParallelLinearImpl : public ParallelLinearImpl {
 public:
  RowParallelLinearImpl(
      const TensorParallel& how,
      const ParallelLinearOptions& options)
      : ParallelLinearImpl(LinearDivision::kRow, how, options) {}
};
TORCH_MODULE(RowParallelLinear);

} // namespace tessera
