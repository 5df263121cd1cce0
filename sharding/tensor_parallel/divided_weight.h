// SPDX-License-Identifier: Apache-2.0
#pragma once
// `mark_divided()` marks a weight as a partition, so that operators of modules
// that know nothing of tensor parallelism communicate.
//
// [Note: divided weights] A torch::nn::Linear calls operators with its weight,
// and that is enough to intercept: a rank's partition of the weight carries a
// dispatch key, above autograd and below the page key, and a description of the
// partition. Operators that multiply with such a weight, or look up rows in it,
// are dispatched to kernels that add the communication. All other operators on
// it pass through at no cost. The key is DeferredInit, which LibTorch has
// reserved for such libraries and does not use; its registration is
// process-wide.
//
// The description is kept in the TensorImpl. It is preserved by detach(),
// Module::to() and set_data(), but not by clone() or a cast, which return new
// tensors.

#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace tessera::sharding {

/// Describes a partition of a parameter.
struct DividedParameter {
  TensorSpec spec;
  TensorDivision division = TensorDivision::kColumn;
  std::shared_ptr<const TensorParallel> tp;
  /// kVocab: the row of the whole table that gets no gradient; -1: there is
  /// none.
  int64_t padding_id = -1;

  const std::string& name() const {
    return spec.name();
  }
  /// How the tensor-parallel ranks divide its dimension.
  DimSplit split() const {
    return spec.split(kTensorAxis);
  }
};

/// From now on, operators treat `part` as a partition.
/// @throws tessera::Error when another library uses the dispatch key.
void mark_divided(
    const at::Tensor& part,
    std::shared_ptr<const DividedParameter> parameter);

/// Returns the description given to mark_divided(), or null.
const DividedParameter* divided_parameter(const at::Tensor& tensor);

/// What a column-parallel product with a partition multiplies on this rank.
struct DividedOperands {
  at::Tensor x; ///< whole; its gradient is summed over the ranks
  at::Tensor bias; ///< this rank's part; undefined without one
};

/// @param x, bias of at::linear() with a weight that is divided as kColumn or
///   kVocab.
/// Collective if x is divided; its backward is.
DividedOperands divided_operands(
    const at::Tensor& x,
    const at::Tensor& bias,
    const DividedParameter& parameter);

} // namespace tessera::sharding
