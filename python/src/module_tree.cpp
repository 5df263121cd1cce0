// SPDX-License-Identifier: Apache-2.0
#include "module_tree.h"

#include <utility>

namespace tessera::python {

ModuleTree::ModuleTree(sharding::ModuleKind kind)
    : torch::nn::Module(kind.type), kind_(std::move(kind)) {}

void ModuleTree::clear() {
  parameters_.clear();
  for (const auto& child : named_children()) {
    unregister_module(child.key());
  }
}

void ModuleTree::add_parameter(
    const std::string& name,
    const at::Tensor& parameter) {
  // register_parameter() would set requires_grad.
  parameters_.insert(name, parameter);
}

void ModuleTree::set_buffer(const std::string& name, const at::Tensor& buffer) {
  const auto own = named_buffers(/*recurse=*/false);
  if (const at::Tensor* found = own.find(name)) {
    // What the engine has listed stays; it shares the new one's memory.
    found->set_data(buffer);
  } else {
    register_buffer(name, buffer);
  }
}

void ModuleTree::add_module(
    const std::string& name,
    const std::shared_ptr<ModuleTree>& module) {
  register_module(name, module);
}

} // namespace tessera::python
