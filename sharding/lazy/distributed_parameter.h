// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DistributedParameter` declares a parameter that is allocated only as shards,
// for models that do not fit in the memory of any rank.

#include "tessera/sharding/lazy/init_method.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

struct DistributedParameterOptions {
  at::ScalarType dtype = at::kFloat;
  c10::Device device = at::kCPU;
  bool requires_grad = true;
};

/// A parameter with sizes and an init method, without memory. init_parameters()
/// determines its initial values; wrap() allocates this rank's shard. From then
/// on it is used as any tensor of a wrapped module: operators all-gather it.
class DistributedParameter {
 public:
  DistributedParameter() = default;
  DistributedParameter(
      at::IntArrayRef sizes,
      InitMethod init,
      const DistributedParameterOptions& options = {});

  /// The tensor to register and to pass to operators.
  const at::Tensor& tensor() const {
    return tensor_;
  }
  /* implicit */ operator const at::Tensor&() const {
    return tensor_;
  }

  /// Returns a copy of the whole value, for code that reads memory. Its
  /// gradient flows to the parameter. Collective, as any use of the parameter;
  /// call it only in a training step or a forward.
  at::Tensor gather() const;

 private:
  at::Tensor tensor_;
};

/// Returns the init method of a distributed parameter that init_parameters()
/// has not seen yet; null for any other tensor.
InitMethod declared_init(const at::Tensor& tensor);

/// A module that can register distributed parameters.
class DistributedModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  using torch::nn::Module::register_parameter;

  /// Registers `parameter` under `name` and returns it.
  DistributedParameter register_parameter(
      const std::string& name,
      DistributedParameter parameter);
};

/// Determines the initial values of all distributed parameters in `module`. The
/// values of a parameter depend on the seed, its first name in `module` and its
/// init method, but not on the number of ranks or on other parameters. Nothing
/// is filled yet; wrap() or materialize() does that. Parameters that have
/// memory stay as they are. Call this on every rank, with the same seed, before
/// wrap(), which throws where ranks with parts of the same parameters differ.
/// @throws tessera::Error when the module is wrapped.
void init_parameters(const torch::nn::Module& module, uint64_t seed = 0);

} // namespace tessera
