// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ModuleTree` is a module of LibTorch that has the parameters and buffers of a
// Python module, the same tensors under the same names.

#include "tessera/sharding/groups/module_kind.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace tessera::python {

/// A node of the tree, for one torch.nn.Module. It computes nothing: what is
/// called is the Python module, whose parameters are paged as they are.
class ModuleTree final : public torch::nn::Module,
                         public sharding::ForeignModule {
 public:
  /// @param kind its type is the name of the Python class.
  explicit ModuleTree(sharding::ModuleKind kind);

  /// Removes parameters and modules, not buffers.
  void clear();
  void add_parameter(const std::string& name, const at::Tensor& parameter);
  /// A buffer of that name, if there is one, becomes this one.
  void set_buffer(const std::string& name, const at::Tensor& buffer);
  void add_module(
      const std::string& name,
      const std::shared_ptr<ModuleTree>& module);

  sharding::ModuleKind kind() const override {
    return kind_;
  }

 private:
  sharding::ModuleKind kind_;
};

} // namespace tessera::python
