// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of a module: each once, with all its names.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

namespace tessera {

/// One parameter tensor, however many modules it is registered in.
struct ParameterRecord {
  std::vector<std::string> names; ///< "encoder.layer.0.weight", ...; not empty
  at::Tensor tensor;
  /// In which it is gathered and used; the tensor's own unless precision lowers
  /// it.
  at::ScalarType dtype = at::kFloat;

  const std::string& name() const {
    return names.front();
  }
};

/// All parameters in registration order, tied ones once.
/// @throws tessera::Error when one cannot be sharded, naming it and why: not
///   dense and strided, without storage, overlapping itself or another one, on
///   another device than the rest, or already wrapped by another engine.
std::vector<ParameterRecord> take_parameter_census(
    const torch::nn::Module& module);

/// Elements from the first to the last that `tensor` addresses, inclusive.
int64_t storage_extent(const at::Tensor& tensor);

} // namespace tessera
