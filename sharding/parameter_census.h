// SPDX-License-Identifier: Apache-2.0
#pragma once
// `take_parameter_census()` lists the parameters of a module, each once, with
// all its names.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// @param path of the module in the wrapped module, e.g. "encoder.layer.0".
using ModulePredicate =
    std::function<bool(const std::string& path, const torch::nn::Module&)>;

/// Parameters that the engine ignores: they are not sharded, paged, averaged
/// over the ranks or optimized. They stay ordinary tensors of the caller, who
/// may train them with a separate optimizer.
struct IgnoredParameters {
  /// Regular expressions over the whole path of a parameter, or of a module
  /// with everything in it.
  std::vector<std::string> paths;
  /// Selects modules, with everything in them.
  ModulePredicate modules;
};

/// One parameter tensor, under however many names it is registered.
struct ParameterRecord {
  std::vector<std::string> names; ///< "encoder.layer.0.weight", ...; not empty
  at::Tensor tensor;
  /// The dtype in which it is all-gathered and used: its own, unless
  /// PrecisionPolicy lowers it.
  at::ScalarType dtype = at::kFloat;

  const std::string& name() const {
    return names.front();
  }
};

/// Returns all parameters in registration order, without ignored ones; a tied
/// parameter is listed once.
/// @throws tessera::Error when an expression of `ignored` matches nothing; when
///   a tensor or its storage is ignored in one place and used in another; and,
///   naming the parameter and the reason, when one cannot be sharded: it is not
///   dense and strided, has no storage, overlaps itself or another one, is on
///   another device than the rest, or is already wrapped by another engine.
std::vector<ParameterRecord> take_parameter_census(
    const torch::nn::Module& module,
    const IgnoredParameters& ignored = {});

/// Returns the number of elements from the first to the last that `tensor`
/// addresses, inclusive.
int64_t storage_extent(const at::Tensor& tensor);

} // namespace tessera
