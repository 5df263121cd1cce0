// SPDX-License-Identifier: Apache-2.0
#pragma once
// Weights of modules that know nothing of tensor parallelism.
//
// [Note: divided weights] A torch::nn::Linear calls operators with its weight,
// and that is all one needs to see: a rank's part of the weight carries a
// dispatch key, above autograd and below the pager's, and with it what the part
// is of. Operators that multiply with such a weight, or look rows up in it,
// then go to kernels that put the communication around the operator. All other
// operators on it pass through at no cost. The key is DeferredInit, which
// LibTorch has set aside for libraries like this one and does not use; its
// registration is process-wide.
//
// The knowledge is kept in the TensorImpl, and follows it: through detach(),
// Module::to() and set_data(). It does not follow clone() or a cast, whose
// results are tensors of their own.

#include "tessera/sharding/parallel/parallel_module.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace tessera {

/// What becomes of a layer.
enum class TensorDivision {
  /// A torch::nn::Linear: each rank computes some of the output features, from
  /// whole activations.
  kColumn,
  /// The same, and all ranks get all of them.
  kColumnGathered,
  /// A torch::nn::Linear: each rank uses some of the input features, as a
  /// kColumn layer leaves them or of whole activations; all ranks get the sum.
  kRow,
  /// A torch::nn::Embedding: each rank has some of the rows. A head that
  /// multiplies with the same table is kColumnGathered.
  kVocab,
};

const char* to_string(TensorDivision division);

/// What a rank's part of a parameter is of.
struct DividedParameter {
  std::string name; ///< for errors
  TensorDivision division = TensorDivision::kColumn;
  ParameterPart part;
  TensorParallel how;
  /// kVocab: of the whole table, whose row gets no gradient; -1: there is none.
  int64_t padding_id = -1;
};

/// From now on operators treat `part` as a part.
/// @throws tessera::Error when another library holds the dispatch key.
void mark_divided(
    const at::Tensor& part,
    std::shared_ptr<const DividedParameter> what);

/// What mark_divided() was given for the tensor, or null.
const DividedParameter* divided_parameter(const at::Tensor& tensor);

} // namespace tessera
