// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/parallel/parallel_module.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/parallel/divided_weight.h"
#include "tessera/sharding/parallel/slice_init.h"

#include <utility>

namespace tessera {

namespace {

template <typename Visit>
void for_each_parallel_module(
    const torch::nn::Module& module,
    const Visit& visit) {
  const auto look_at = [&](const torch::nn::Module& one) {
    if (const auto* parallel = dynamic_cast<const ParallelModule*>(&one)) {
      visit(*parallel);
    }
  };
  look_at(module);
  for (const auto& child : module.modules(/*include_self=*/false)) {
    look_at(*child);
  }
}

} // namespace

ParallelModule::ParallelModule(const TensorParallel& how) : how_(how) {
  TESSERA_CHECK(
      how_.group != nullptr,
      "a parallel layer was given no group: set TensorParallel::group; for a single rank, use a Communicator of one.");
}

at::Tensor ParallelModule::register_part(
    const std::string& name,
    std::vector<int64_t> sizes,
    const Shard& placement,
    InitMethod init,
    const DistributedParameterOptions& options) {
  TensorSpec spec = tensor_parallel_spec(
      name, std::move(sizes), options.dtype, placement, *how_.group);
  const auto part = DistributedParameter(
      spec.own_sizes(),
      sharding::slice_init(std::move(init), spec.sizes, spec.part().ranges),
      options);
  specs_.emplace(name, std::move(spec));
  return register_parameter(name, part);
}

at::Tensor ParallelModule::register_whole(
    const std::string& name,
    at::IntArrayRef sizes,
    InitMethod init,
    const DistributedParameterOptions& options) {
  return register_parameter(
      name, DistributedParameter(sizes, std::move(init), options));
}

TensorSpec tensor_parallel_spec(
    std::string name,
    std::vector<int64_t> sizes,
    at::ScalarType dtype,
    const Shard& placement,
    const Communicator& group) {
  TensorSpec spec = whole_spec({std::move(name)}, std::move(sizes), dtype);
  spec.axes.push_back({kTensorAxis, group.size(), group.rank(), placement});
  return spec;
}

std::shared_ptr<const TensorParallel> tensor_parallel_of(
    const torch::nn::Module& module) {
  for (const at::Tensor& parameter : module.parameters()) {
    if (const auto* divided = sharding::divided_parameter(parameter)) {
      return divided->how;
    }
  }
  return nullptr;
}

Communicator* tensor_group_of(const torch::nn::Module& module) {
  const auto how = tensor_parallel_of(module);
  Communicator* group = how == nullptr ? nullptr : how->group;
  for_each_parallel_module(module, [&](const ParallelModule& parallel) {
    group = parallel.how().group;
  });
  return group;
}

TensorSpecs specs_in(const torch::nn::Module& module) {
  TensorSpecs specs;
  const auto divide = [&](const at::Tensor& tensor, const TensorSpec& from) {
    TensorSpec& spec = specs.at(tensor.unsafeGetTensorImpl());
    spec.sizes = from.sizes;
    spec.axes = from.axes;
  };
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    const auto [found, is_new] = specs.try_emplace(
        tensor.unsafeGetTensorImpl(),
        whole_spec({}, tensor.sizes().vec(), tensor.scalar_type()));
    found->second.names.push_back(name);
    if (const auto* divided = sharding::divided_parameter(tensor)) {
      divide(tensor, divided->spec);
    }
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  for_each_parallel_module(module, [&](const ParallelModule& parallel) {
    const auto parameters = parallel.named_parameters(/*recurse=*/false);
    for (const auto& [name, spec] : parallel.specs()) {
      divide(parameters[name], spec);
    }
  });
  return specs;
}

TensorSpec spec_of(const at::Tensor& tensor, const TensorSpecs& specs) {
  const auto found = specs.find(tensor.unsafeGetTensorImpl());
  return found == specs.end()
             ? whole_spec({}, tensor.sizes().vec(), tensor.scalar_type())
             : found->second;
}

} // namespace tessera
