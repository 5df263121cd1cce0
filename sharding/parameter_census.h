// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parameters of a module: each once, with all its names.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// @param path of the module in the wrapped one, "encoder.layer.0".
using ModulePredicate =
    std::function<bool(const std::string& path, const torch::nn::Module&)>;

/// What the engine leaves alone: these parameters are not sharded, paged,
/// averaged over the ranks or optimised. They stay ordinary tensors of the
/// caller, who may train them with an optimizer of their own.
struct IgnoredParameters {
  /// Regular expressions over the whole path of a parameter, or of a module
  /// with all that is in it.
  std::vector<std::string> paths;
  /// Modules, with all that is in them.
  ModulePredicate modules;
};

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

/// All parameters in registration order, tied ones once, without ignored ones.
/// @throws tessera::Error when an expression of `ignored` matches nothing, and
///   when a tensor or its storage is ignored in one place and used in another.
/// @throws tessera::Error when one cannot be sharded, naming it and why: not
///   dense and strided, without storage, overlapping itself or another one, on
///   another device than the rest, or already wrapped by another engine.
std::vector<ParameterRecord> take_parameter_census(
    const torch::nn::Module& module,
    const IgnoredParameters& ignored = {});

/// Elements from the first to the last that `tensor` addresses, inclusive.
int64_t storage_extent(const at::Tensor& tensor);

} // namespace tessera
