// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parameters that are declared, and made only where they are kept: for models
// that are larger than the memory of any rank.

#include "tessera/sharding/init_method.h"

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
/// says what it starts from; wrap() makes this rank's slice of it. From then on
/// it is used as any tensor of a wrapped module: operators gather it.
class DistributedParameter {
 public:
  DistributedParameter() = default;
  DistributedParameter(
      at::IntArrayRef sizes,
      InitMethod init,
      const DistributedParameterOptions& options = {});

  /// The tensor to register and to give to operators.
  const at::Tensor& tensor() const {
    return tensor_;
  }
  /* implicit */ operator const at::Tensor&() const {
    return tensor_;
  }

  /// The whole value as a tensor of its own, for code that reads memory. Its
  /// gradient goes to the parameter. Collective, as any use of the parameter;
  /// only in a training step or a forward.
  at::Tensor gather() const;

 private:
  at::Tensor tensor_;
};

/// A module with distributed parameters.
class DistributedModule : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;
  using torch::nn::Module::register_parameter;

  /// Registers it under `name` and returns it.
  DistributedParameter register_parameter(
      const std::string& name,
      DistributedParameter parameter);
};

/// Determines the initial values of all distributed parameters in `module`:
/// those of each depend on the seed, its first name in `module`, and its init
/// method, and neither on the number of ranks nor on other parameters. Fills
/// nothing yet; wrap() or materialize() does. Parameters with memory stay as
/// they are. Call it on every rank, with the same seed, before wrap().
/// @throws tessera::Error when the module is wrapped.
void init_parameters(const torch::nn::Module& module, uint64_t seed = 0);

} // namespace tessera
