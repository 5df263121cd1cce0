// SPDX-License-Identifier: Apache-2.0
#pragma once
// `take_parameter_census()` lists the parameters of a module, each once, with
// its spec.

#include "tessera/sharding/groups/frozen_weights.h"
#include "tessera/sharding/groups/module_choices.h"
#include "tessera/sharding/tensors/tensor_spec.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::sharding {

/// One parameter tensor, under however many names it is registered.
struct ParameterRecord {
  /// Its names ("encoder.layer.0.weight", ...), and how the tensor-parallel
  /// ranks divide it; its numel() is alike on all of them.
  TensorSpec spec;
  at::Tensor tensor;
  /// The dtype in which it is all-gathered and used: its own, unless
  /// PrecisionPolicy lowers it.
  at::ScalarType dtype = at::kFloat;
  /// In DividedExperts: other ranks have parameters of other experts instead.
  bool of_experts = false;
  /// In what it rests, by choose_frozen_weights().
  FrozenWeights frozen_weights = FrozenWeights::kNone;

  const std::string& name() const {
    return spec.name();
  }
};

inline const c10::StorageImpl* storage_of(const ParameterRecord& record) {
  return record.tensor.storage().unsafeGetStorageImpl();
}

/// Returns all parameters in registration order, without ignored ones; a tied
/// parameter is listed once.
/// @throws tessera::Error when a name is not UTF-8; when a tensor or its
/// storage is ignored in one place
///   and used in another; and, naming the parameter and the reason, when one
///   cannot be sharded: it is not dense and strided, has no storage, overlaps
///   itself or another one, is on another device than the rest, or is already
///   wrapped by another engine.
/// @param place in the model, for the error of a module without parameters:
///   " of pipeline stage 1".
std::vector<ParameterRecord> take_parameter_census(
    const torch::nn::Module& module,
    const ModuleChoices& choices,
    const std::string& place = "");

/// Returns the number of elements from the first to the last that `tensor`
/// addresses, inclusive.
int64_t storage_extent(const at::Tensor& tensor);

} // namespace tessera::sharding
