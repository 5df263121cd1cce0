// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ParallelLinear` layers partition their weight over a tensor-parallel group
// (arXiv:1909.08053).

#include "tessera/sharding/parallel/parallel_module.h"

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
  /// kColumn: gathers the output features, so that every rank returns all of
  /// them.
  bool gather_output = false;
  /// kRow: the input is this rank's features, as returned by a column-parallel
  /// layer. If false, the input has all features, which is not supported under
  /// sequence parallelism.
  bool input_is_parallel = true;
  /// Number of consecutive features that stay on one rank, such as those of a
  /// head.
  int64_t unit = 1;
  /// By default that of torch::nn::Linear: uniform within 1 / sqrt(in).
  InitMethod weight_init;
  InitMethod bias_init;
  DistributedParameterOptions parameters;
};

/// y = x W^T + b, where x and y are activations between layers (see
/// TensorParallel) or partitions of their features:
///
/// | division | x [..., in]   | W here       | b here | y [..., out]         |
/// | kData    | between layers| whole        | whole  | between layers       |
/// | kColumn  | between layers| [out/n, in]  | [out/n]| features, or gathered|
/// | kRow     | features      | [out, in/n]  | whole  | between layers       |
///
/// A row-parallel layer adds its bias once, after the sum over the ranks. The
/// replicas of the bias stay equal because all ranks see equal gradients: under
/// sequence parallelism, they are summed (whole_parameter()).
///
/// Feature counts need not divide evenly, see DimSplit.
class ParallelLinearImpl : public ParallelModule {
 public:
  /// @throws tessera::Error when there are fewer features to partition than
  ///   ranks, or an option does not apply to the division.
  ParallelLinearImpl(
      LinearDivision division,
      const TensorParallel& how,
      const ParallelLinearOptions& options);

  /// Collective unless the group has one rank.
  at::Tensor forward(const at::Tensor& x);

  /// The linear layer alone, for several column-parallel layers that share one
  /// enter_layer(). Not collective.
  /// @param entered result of enter_layer().
  at::Tensor forward_entered(const at::Tensor& entered) const;

  const sharding::DimSplit& split() const {
    return split_;
  }

  at::Tensor weight;
  at::Tensor bias; ///< undefined if there is none

 private:
  LinearDivision division_;
  ParallelLinearOptions options_;
  sharding::DimSplit split_; ///< of the partitioned dimension
};

/// One name for all three divisions (LiBai's).
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
